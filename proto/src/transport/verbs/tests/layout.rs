//! Compares the bindings with what a C compiler says (`layout.c`): sizes, offsets, constants, and the functions that are inline in C.
#![allow(unsafe_code, reason = "calls into C to compare")]

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char};
use std::mem::{MaybeUninit, offset_of, zeroed};

use super::super::ffi::*;

#[repr(C)]
struct Fact {
    name: *const c_char,
    value: u64,
}

unsafe extern "C" {
    fn dafs_verbs_facts(first: *mut *const Fact) -> usize;
    fn dafs_verbs_echo(context: *mut ibv_context, cq: *mut ibv_cq, qp: *mut ibv_qp);
}

fn facts_of_c() -> BTreeMap<String, u64> {
    let mut first = std::ptr::null();
    // SAFETY: stores the address of a static array and answers its length.
    let facts = unsafe {
        let count = dafs_verbs_facts(&raw mut first);
        std::slice::from_raw_parts(first, count)
    };
    // SAFETY: names are C string literals.
    facts
        .iter()
        .map(|fact| (unsafe { CStr::from_ptr(fact.name) }.to_str().unwrap().to_owned(), fact.value))
        .collect()
}

macro_rules! facts {
    ($map:ident; $($type:ident { $($field:literal => $($path:ident).+),* $(,)? })*) => {
        $(
            $map.insert(concat!("size ", stringify!($type)).to_owned(), size_of::<$type>() as u64);
            $($map.insert(concat!(stringify!($type), ".", $field).to_owned(), offset_of!($type, $($path).+) as u64);)*
        )*
    };
}

#[allow(clippy::cast_sign_loss, clippy::unnecessary_cast, reason = "C's enumerations are small")]
fn facts_of_rust() -> BTreeMap<String, u64> {
    let mut map = BTreeMap::new();
    facts! { map;
        ibv_send_wr {
            "wr_id" => wr_id, "next" => next, "sg_list" => sg_list, "num_sge" => num_sge, "opcode" => opcode,
            "send_flags" => send_flags, "imm_data" => imm_data_invalidated_rkey_union,
            "wr.rdma.remote_addr" => wr.rdma.remote_addr, "wr.rdma.rkey" => wr.rdma.rkey,
        }
        ibv_recv_wr { "wr_id" => wr_id, "next" => next, "sg_list" => sg_list, "num_sge" => num_sge }
        ibv_sge { "addr" => addr, "length" => length, "lkey" => lkey }
        ibv_wc {
            "wr_id" => wr_id, "status" => status, "opcode" => opcode, "vendor_err" => vendor_err, "byte_len" => byte_len,
            "imm_data" => imm_data_invalidated_rkey_union, "wc_flags" => wc_flags,
        }
        ibv_mr { "lkey" => lkey, "rkey" => rkey }
        ibv_device { "transport_type" => transport_type }
        ibv_async_event { "element" => element, "event_type" => event_type }
        ibv_context {
            "device" => device, "async_fd" => async_fd, "ops.poll_cq" => ops.poll_cq, "ops.req_notify_cq" => ops.req_notify_cq,
            "ops.post_send" => ops.post_send, "ops.post_recv" => ops.post_recv,
        }
        ibv_cq { "context" => context }
        ibv_qp { "context" => context }
        ibv_comp_channel { "fd" => fd }
        ibv_qp_init_attr {
            "send_cq" => send_cq, "recv_cq" => recv_cq, "cap.max_send_wr" => cap.max_send_wr,
            "cap.max_inline_data" => cap.max_inline_data, "qp_type" => qp_type, "sq_sig_all" => sq_sig_all,
        }
        ibv_qp_attr { "qp_state" => qp_state, "min_rnr_timer" => min_rnr_timer }
        ibv_device_attr {
            "max_qp" => max_qp, "max_qp_wr" => max_qp_wr, "max_sge" => max_sge, "max_sge_rd" => max_sge_rd,
            "max_cq" => max_cq, "max_cqe" => max_cqe,
            "max_qp_rd_atom" => max_qp_rd_atom, "max_qp_init_rd_atom" => max_qp_init_rd_atom, "phys_port_cnt" => phys_port_cnt,
        }
        ibv_port_attr { "state" => state, "active_mtu" => active_mtu, "max_msg_sz" => max_msg_sz, "link_layer" => link_layer }
        rdma_cm_id {
            "verbs" => verbs, "channel" => channel, "context" => context, "qp" => qp,
            "route.addr.src_addr" => route.addr.src_addr_union, "route.addr.dst_addr" => route.addr.dst_addr_union,
            "port_num" => port_num,
        }
        rdma_event_channel { "fd" => fd }
        rdma_cm_event {
            "id" => id, "listen_id" => listen_id, "event" => event, "status" => status,
            "param.conn.private_data" => param.conn.private_data, "param.conn.private_data_len" => param.conn.private_data_len,
        }
        rdma_conn_param {
            "private_data" => private_data, "private_data_len" => private_data_len,
            "responder_resources" => responder_resources, "initiator_depth" => initiator_depth,
            "retry_count" => retry_count, "rnr_retry_count" => rnr_retry_count,
        }
    }
    let constants = [
        ("IBV_ACCESS_LOCAL_WRITE", ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 as u64),
        ("IBV_ACCESS_REMOTE_WRITE", ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 as u64),
        ("IBV_ACCESS_REMOTE_READ", ibv_access_flags::IBV_ACCESS_REMOTE_READ.0 as u64),
        ("IBV_SEND_SIGNALED", ibv_send_flags::IBV_SEND_SIGNALED.0 as u64),
        ("IBV_SEND_SOLICITED", ibv_send_flags::IBV_SEND_SOLICITED.0 as u64),
        ("IBV_SEND_INLINE", ibv_send_flags::IBV_SEND_INLINE.0 as u64),
        ("IBV_WR_RDMA_WRITE", ibv_wr_opcode::IBV_WR_RDMA_WRITE as u64),
        ("IBV_WR_RDMA_WRITE_WITH_IMM", ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM as u64),
        ("IBV_WR_SEND", ibv_wr_opcode::IBV_WR_SEND as u64),
        ("IBV_WR_RDMA_READ", ibv_wr_opcode::IBV_WR_RDMA_READ as u64),
        ("IBV_WC_RECV", ibv_wc_opcode::IBV_WC_RECV as u64),
        ("IBV_WC_RECV_RDMA_WITH_IMM", ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM as u64),
        ("IBV_WC_SUCCESS", ibv_wc_status::IBV_WC_SUCCESS as u64),
        ("IBV_WC_LOC_PROT_ERR", ibv_wc_status::IBV_WC_LOC_PROT_ERR as u64),
        ("IBV_WC_WR_FLUSH_ERR", ibv_wc_status::IBV_WC_WR_FLUSH_ERR as u64),
        ("IBV_WC_REM_ACCESS_ERR", ibv_wc_status::IBV_WC_REM_ACCESS_ERR as u64),
        ("IBV_WC_RETRY_EXC_ERR", ibv_wc_status::IBV_WC_RETRY_EXC_ERR as u64),
        ("IBV_WC_RNR_RETRY_EXC_ERR", ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR as u64),
        ("IBV_WC_GENERAL_ERR", ibv_wc_status::IBV_WC_GENERAL_ERR as u64),
        ("IBV_QPT_RC", ibv_qp_type::IBV_QPT_RC as u64),
        ("IBV_QPS_ERR", ibv_qp_state::IBV_QPS_ERR as u64),
        ("IBV_QP_STATE", ibv_qp_attr_mask::IBV_QP_STATE.0 as u64),
        ("IBV_QP_MIN_RNR_TIMER", ibv_qp_attr_mask::IBV_QP_MIN_RNR_TIMER.0 as u64),
        ("IBV_PORT_ACTIVE", ibv_port_state::IBV_PORT_ACTIVE as u64),
        ("IBV_TRANSPORT_IWARP", ibv_transport_type::IBV_TRANSPORT_IWARP as u64),
        ("RDMA_PS_TCP", rdma_port_space::RDMA_PS_TCP as u64),
        ("RDMA_CM_EVENT_ADDR_RESOLVED", rdma_cm_event_type::RDMA_CM_EVENT_ADDR_RESOLVED as u64),
        ("RDMA_CM_EVENT_CONNECT_REQUEST", rdma_cm_event_type::RDMA_CM_EVENT_CONNECT_REQUEST as u64),
        ("RDMA_CM_EVENT_REJECTED", rdma_cm_event_type::RDMA_CM_EVENT_REJECTED as u64),
        ("RDMA_CM_EVENT_ESTABLISHED", rdma_cm_event_type::RDMA_CM_EVENT_ESTABLISHED as u64),
        ("RDMA_CM_EVENT_DISCONNECTED", rdma_cm_event_type::RDMA_CM_EVENT_DISCONNECTED as u64),
        ("RDMA_CM_EVENT_DEVICE_REMOVAL", rdma_cm_event_type::RDMA_CM_EVENT_DEVICE_REMOVAL as u64),
        ("RDMA_CM_EVENT_TIMEWAIT_EXIT", rdma_cm_event_type::RDMA_CM_EVENT_TIMEWAIT_EXIT as u64),
    ];
    map.extend(constants.map(|(name, value)| (name.to_owned(), value)));
    map
}

/// [VERBS-40]
#[test]
fn layouts_and_constants_are_those_of_c() {
    let (c, mut rust) = (facts_of_c(), facts_of_rust());
    // Sizes of the structures of which only a field is used.
    rust.retain(|name, _| c.contains_key(name) || !name.starts_with("size "));
    assert_eq!(rust, c);
}

/// [VERBS-40]
#[test]
fn inline_functions_call_the_entries_that_c_calls() {
    // SAFETY: plain C structures for which zero is valid; the entries that are called are set by `dafs_verbs_echo`.
    unsafe {
        let mut context: MaybeUninit<ibv_context> = MaybeUninit::zeroed();
        let mut cq: MaybeUninit<ibv_cq> = MaybeUninit::zeroed();
        let mut qp: MaybeUninit<ibv_qp> = MaybeUninit::zeroed();
        dafs_verbs_echo(context.as_mut_ptr(), cq.as_mut_ptr(), qp.as_mut_ptr());

        let mut wc: ibv_wc = zeroed();
        assert_eq!(ibv_poll_cq(cq.as_mut_ptr(), 1, &raw mut wc), 1);
        assert_eq!((wc.wr_id, wc.status), (0x1122_3344_5566_7788, ibv_wc_status::IBV_WC_REM_ACCESS_ERR));
        assert_eq!((wc.opcode, wc.byte_len), (ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM, 4096));
        assert_eq!(wc.imm_data_invalidated_rkey_union.imm_data, 0x0a0b_0c0d);
        assert_eq!(ibv_req_notify_cq(cq.as_mut_ptr(), 0), 100);
        assert_eq!(ibv_req_notify_cq(cq.as_mut_ptr(), 1), 101);

        let mut sge = ibv_sge { addr: 0x1000, length: 9, lkey: 5 };
        let mut send: ibv_send_wr = zeroed();
        send.wr_id = 7;
        send.sg_list = &raw mut sge;
        send.num_sge = 1;
        send.opcode = ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;
        send.send_flags = (ibv_send_flags::IBV_SEND_SIGNALED | ibv_send_flags::IBV_SEND_SOLICITED).0;
        send.imm_data_invalidated_rkey_union = imm_data_invalidated_rkey_union_t { imm_data: 0x0102_0304 };
        send.wr = wr_t { rdma: rdma_t { remote_addr: 0x1234_5678_9abc, rkey: 0xfeed_beef } };
        let mut bad = std::ptr::null_mut();
        assert_eq!(ibv_post_send(qp.as_mut_ptr(), &raw mut send, &raw mut bad), 201);
        assert!(std::ptr::eq(bad, &raw const send));

        sge.length = 10;
        let mut recv: ibv_recv_wr = zeroed();
        recv.wr_id = 8;
        recv.sg_list = &raw mut sge;
        recv.num_sge = 1;
        let mut bad = std::ptr::null_mut();
        assert_eq!(ibv_post_recv(qp.as_mut_ptr(), &raw mut recv, &raw mut bad), 301);
    }
}
