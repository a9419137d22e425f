/* What the C compiler says about the structures, constants and inline functions that the provider uses. Compared by layout.rs. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

struct fact {
	const char *name;
	uint64_t value;
};

#define SIZE(type) { "size " #type, sizeof(struct type) }
#define FIELD(type, field) { #type "." #field, offsetof(struct type, field) }
#define CONSTANT(name) { #name, (uint64_t)(name) }

static const struct fact facts[] = {
	SIZE(ibv_send_wr),
	FIELD(ibv_send_wr, wr_id),
	FIELD(ibv_send_wr, next),
	FIELD(ibv_send_wr, sg_list),
	FIELD(ibv_send_wr, num_sge),
	FIELD(ibv_send_wr, opcode),
	FIELD(ibv_send_wr, send_flags),
	FIELD(ibv_send_wr, imm_data),
	FIELD(ibv_send_wr, wr.rdma.remote_addr),
	FIELD(ibv_send_wr, wr.rdma.rkey),
	SIZE(ibv_recv_wr),
	FIELD(ibv_recv_wr, wr_id),
	FIELD(ibv_recv_wr, next),
	FIELD(ibv_recv_wr, sg_list),
	FIELD(ibv_recv_wr, num_sge),
	SIZE(ibv_sge),
	FIELD(ibv_sge, addr),
	FIELD(ibv_sge, length),
	FIELD(ibv_sge, lkey),
	SIZE(ibv_wc),
	FIELD(ibv_wc, wr_id),
	FIELD(ibv_wc, status),
	FIELD(ibv_wc, opcode),
	FIELD(ibv_wc, vendor_err),
	FIELD(ibv_wc, byte_len),
	FIELD(ibv_wc, imm_data),
	FIELD(ibv_wc, wc_flags),
	SIZE(ibv_mr),
	FIELD(ibv_mr, lkey),
	FIELD(ibv_mr, rkey),
	FIELD(ibv_device, transport_type),
	SIZE(ibv_async_event),
	FIELD(ibv_async_event, element),
	FIELD(ibv_async_event, event_type),
	SIZE(ibv_context),
	FIELD(ibv_context, device),
	FIELD(ibv_context, async_fd),
	FIELD(ibv_context, ops.poll_cq),
	FIELD(ibv_context, ops.req_notify_cq),
	FIELD(ibv_context, ops.post_send),
	FIELD(ibv_context, ops.post_recv),
	FIELD(ibv_cq, context),
	FIELD(ibv_qp, context),
	FIELD(ibv_comp_channel, fd),
	SIZE(ibv_qp_init_attr),
	FIELD(ibv_qp_init_attr, send_cq),
	FIELD(ibv_qp_init_attr, recv_cq),
	FIELD(ibv_qp_init_attr, cap.max_send_wr),
	FIELD(ibv_qp_init_attr, cap.max_inline_data),
	FIELD(ibv_qp_init_attr, qp_type),
	FIELD(ibv_qp_init_attr, sq_sig_all),
	SIZE(ibv_qp_attr),
	FIELD(ibv_qp_attr, qp_state),
	FIELD(ibv_qp_attr, min_rnr_timer),
	SIZE(ibv_device_attr),
	FIELD(ibv_device_attr, max_qp),
	FIELD(ibv_device_attr, max_qp_wr),
	FIELD(ibv_device_attr, max_sge),
	FIELD(ibv_device_attr, max_sge_rd),
	FIELD(ibv_device_attr, max_cq),
	FIELD(ibv_device_attr, max_cqe),
	FIELD(ibv_device_attr, max_qp_rd_atom),
	FIELD(ibv_device_attr, max_qp_init_rd_atom),
	FIELD(ibv_device_attr, phys_port_cnt),
	SIZE(ibv_port_attr),
	FIELD(ibv_port_attr, state),
	FIELD(ibv_port_attr, active_mtu),
	FIELD(ibv_port_attr, max_msg_sz),
	FIELD(ibv_port_attr, link_layer),
	SIZE(rdma_cm_id),
	FIELD(rdma_cm_id, verbs),
	FIELD(rdma_cm_id, channel),
	FIELD(rdma_cm_id, context),
	FIELD(rdma_cm_id, qp),
	FIELD(rdma_cm_id, route.addr.src_addr),
	FIELD(rdma_cm_id, route.addr.dst_addr),
	FIELD(rdma_cm_id, port_num),
	FIELD(rdma_event_channel, fd),
	SIZE(rdma_cm_event),
	FIELD(rdma_cm_event, id),
	FIELD(rdma_cm_event, listen_id),
	FIELD(rdma_cm_event, event),
	FIELD(rdma_cm_event, status),
	FIELD(rdma_cm_event, param.conn.private_data),
	FIELD(rdma_cm_event, param.conn.private_data_len),
	SIZE(rdma_conn_param),
	FIELD(rdma_conn_param, private_data),
	FIELD(rdma_conn_param, private_data_len),
	FIELD(rdma_conn_param, responder_resources),
	FIELD(rdma_conn_param, initiator_depth),
	FIELD(rdma_conn_param, retry_count),
	FIELD(rdma_conn_param, rnr_retry_count),
	CONSTANT(IBV_ACCESS_LOCAL_WRITE),
	CONSTANT(IBV_ACCESS_REMOTE_WRITE),
	CONSTANT(IBV_ACCESS_REMOTE_READ),
	CONSTANT(IBV_SEND_SIGNALED),
	CONSTANT(IBV_SEND_SOLICITED),
	CONSTANT(IBV_SEND_INLINE),
	CONSTANT(IBV_WR_RDMA_WRITE),
	CONSTANT(IBV_WR_RDMA_WRITE_WITH_IMM),
	CONSTANT(IBV_WR_SEND),
	CONSTANT(IBV_WR_RDMA_READ),
	CONSTANT(IBV_WC_RECV),
	CONSTANT(IBV_WC_RECV_RDMA_WITH_IMM),
	CONSTANT(IBV_WC_SUCCESS),
	CONSTANT(IBV_WC_LOC_PROT_ERR),
	CONSTANT(IBV_WC_WR_FLUSH_ERR),
	CONSTANT(IBV_WC_REM_ACCESS_ERR),
	CONSTANT(IBV_WC_RETRY_EXC_ERR),
	CONSTANT(IBV_WC_RNR_RETRY_EXC_ERR),
	CONSTANT(IBV_WC_GENERAL_ERR),
	CONSTANT(IBV_QPT_RC),
	CONSTANT(IBV_QPS_ERR),
	CONSTANT(IBV_QP_STATE),
	CONSTANT(IBV_QP_MIN_RNR_TIMER),
	CONSTANT(IBV_PORT_ACTIVE),
	CONSTANT(IBV_TRANSPORT_IWARP),
	CONSTANT(RDMA_PS_TCP),
	CONSTANT(RDMA_CM_EVENT_ADDR_RESOLVED),
	CONSTANT(RDMA_CM_EVENT_CONNECT_REQUEST),
	CONSTANT(RDMA_CM_EVENT_REJECTED),
	CONSTANT(RDMA_CM_EVENT_ESTABLISHED),
	CONSTANT(RDMA_CM_EVENT_DISCONNECTED),
	CONSTANT(RDMA_CM_EVENT_DEVICE_REMOVAL),
	CONSTANT(RDMA_CM_EVENT_TIMEWAIT_EXIT),
};

size_t dafs_verbs_facts(const struct fact **first)
{
	*first = facts;
	return sizeof(facts) / sizeof(facts[0]);
}

/* A device whose table answers with what it was asked, so that both languages' inline functions can be seen to call the same entry. */

static int poll_cq(struct ibv_cq *cq, int count, struct ibv_wc *wc)
{
	memset(wc, 0, sizeof(*wc));
	wc->wr_id = 0x1122334455667788;
	wc->status = IBV_WC_REM_ACCESS_ERR;
	wc->opcode = IBV_WC_RECV_RDMA_WITH_IMM;
	wc->byte_len = 4096;
	wc->imm_data = 0x0a0b0c0d;
	return count;
}

static int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	return 100 + solicited_only;
}

static int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	*bad = wr;
	return wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM && wr->send_flags == (IBV_SEND_SIGNALED | IBV_SEND_SOLICITED) &&
	       wr->wr_id == 7 && !wr->next && wr->num_sge == 1 && wr->sg_list->addr == 0x1000 &&
	       wr->sg_list->length == 9 && wr->sg_list->lkey == 5 && wr->imm_data == 0x01020304 &&
	       wr->wr.rdma.remote_addr == 0x123456789abc && wr->wr.rdma.rkey == 0xfeedbeef ? 201 : 202;
}

static int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	*bad = wr;
	return wr->wr_id == 8 && !wr->next && wr->num_sge == 1 && wr->sg_list->length == 10 ? 301 : 302;
}

void dafs_verbs_echo(struct ibv_context *context, struct ibv_cq *cq, struct ibv_qp *qp)
{
	context->ops.poll_cq = poll_cq;
	context->ops.req_notify_cq = req_notify_cq;
	context->ops.post_send = post_send;
	context->ops.post_recv = post_recv;
	cq->context = context;
	qp->context = context;
}
