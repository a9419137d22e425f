//! What the provider uses of libibverbs and librdmacm. Only this file uses the binding crate.
//!
//! The binding crate has parts written by hand, which its generator cannot read: structures with unions in them, and functions that are
//! inline in the C headers and call through the device's table. `tests/layout.rs` compares both with what a C compiler says.

pub(super) use rdma_sys::{
    ibv_access_flags, ibv_ack_async_event, ibv_ack_cq_events, ibv_alloc_pd, ibv_async_event,
    ibv_close_device, ibv_comp_channel, ibv_context, ibv_cq, ibv_create_comp_channel, ibv_create_cq,
    ibv_dealloc_pd, ibv_dereg_mr, ibv_destroy_comp_channel, ibv_destroy_cq, ibv_device, ibv_device_attr,
    ibv_event_type, ibv_free_device_list, ibv_get_async_event, ibv_get_cq_event, ibv_get_device_list,
    ibv_get_device_name, ibv_modify_qp, ibv_mr, ibv_open_device, ibv_pd, ibv_poll_cq, ibv_port_attr,
    ibv_port_state, ibv_post_recv, ibv_post_send, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask, ibv_qp_init_attr,
    ibv_qp_state, ibv_qp_type, ibv_query_device, ibv_recv_wr, ibv_reg_mr_iova, ibv_req_notify_cq,
    ibv_send_flags, ibv_send_wr, ibv_sge, ibv_transport_type, ibv_wc, ibv_wc_opcode, ibv_wc_status,
    ibv_wr_opcode, imm_data_invalidated_rkey_union_t, rdma_accept, rdma_ack_cm_event, rdma_bind_addr,
    rdma_cm_event, rdma_cm_event_type, rdma_cm_id, rdma_conn_param, rdma_connect, rdma_create_event_channel,
    rdma_create_id, rdma_create_qp, rdma_destroy_event_channel, rdma_destroy_id, rdma_destroy_qp,
    rdma_disconnect, rdma_event_channel, rdma_free_devices, rdma_get_cm_event, rdma_get_devices,
    rdma_get_src_port, rdma_listen, rdma_migrate_id, rdma_port_space, rdma_reject, rdma_resolve_addr,
    rdma_resolve_route, rdma_t, wr_t,
};

/// The port's attributes; inline in C, where the macro of the same name picks it.
pub(super) use rdma_sys::___ibv_query_port as ibv_query_port;

#[cfg(test)]
pub(super) use rdma_sys::{ibv_query_qp, ibv_resize_cq};
