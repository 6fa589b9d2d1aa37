// SPDX-License-Identifier: Apache-2.0
// From a packet to its handler. What breaks the frame drops the peer (answer 20 of the protocol's rules); everything
// else that is wrong is an error reply and the session goes on.
#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "daemon/answer.hpp"
#include "daemon/gpu_publish.hpp"

namespace shmb::daemon {

void Request::fail(const Error& error) const {
  ++world.refusals;
  if (silent()) return;
  auto buffer = std::span(world.reply_buffer.get(), std::size_t{SHMBW_MAX_MESSAGE});
  session.link->reply(wire::write_error_reply(buffer, packet.header.op, packet.header.tag, error), {});
}

void Request::hold() const {
  --world.requests;
  session.held = true;
  session.link->hold();
}

void Request::yield() const {
  --world.requests;
  world.holders = {};  // of this request alone
  session.held = true;
  session.link->yield();
}

void Request::refuse_struct(Status status) const {
  if (status == Status::too_new)
    fail(Status::too_new, "the request uses fields that this broker (" + world.facts.version + ") does not know");
  else fail(Status::invalid, "the request's sizes do not add up: element count and size, or the lengths of its texts");
}

void Request::send(wire::Writer& out) const {
  wire::Bytes packet_out = out.finish(world.reply_fds.size());
  if (packet_out.empty()) fail(Status::system, "own bug: the reply did not fit into one message");
  else session.link->reply(packet_out, world.reply_fds);
  world.reply_fds.clear();
  world.reply_owned.clear();
}

BatchUnderWay::BatchUnderWay(const Request& request, const wire::Writer& writer, std::size_t next_element)
    : world(request.world),
      uid(request.session.uid),
      op(request.packet.header.op),
      tag(request.packet.header.tag),
      out(writer),
      next(next_element),
      written(world.reply_buffer.get(), world.reply_buffer.get() + (SHMBW_MAX_MESSAGE - out.room())),
      fds(std::exchange(world.reply_fds, {})),
      owned(std::exchange(world.reply_owned, {})) {
  world.count_waiting(uid, std::ssize(owned));
}

BatchUnderWay::~BatchUnderWay() { world.count_waiting(uid, -std::ssize(owned)); }

bool BatchUnderWay::belongs_to(const Request& request) const {
  if (op == request.packet.header.op && tag == request.packet.header.tag) return true;
  world.own_bug("own bug: a request was served in part, and another one came instead of its rest");
  return false;
}

void BatchUnderWay::resume() {
  world.count_waiting(uid, -std::ssize(owned));
  std::ranges::copy(written, world.reply_buffer.get());
  world.reply_fds = std::exchange(fds, {});
  world.reply_owned = std::exchange(owned, {});
}

namespace {

using Handler = void (*)(const Request&);

Handler handler_of(std::uint16_t op) {
  switch (op) {
    case SHMBW_OP_CREATE:
      return serve_create;
    case SHMBW_OP_ATTACH:
      return serve_attach;
    case SHMBW_OP_RELEASE:
      return serve_release;
    case SHMBW_OP_READY:
      return serve_ready;
    case SHMBW_OP_PUBLISH:
      return serve_publish;
    case SHMBW_OP_TICKET_CREATE:
      return serve_ticket_create;
    case SHMBW_OP_INHERIT:
      return serve_inherit;
    case SHMBW_OP_GROUP_CREATE:
      return serve_group_create;
    case SHMBW_OP_GROUP_JOIN:
      return serve_group_join;
    case SHMBW_OP_GROUP_LEAVE:
      return serve_group_leave;
    case SHMBW_OP_GROUP_END:
      return serve_group_end;
    case SHMBW_OP_WATCH:
      return serve_watch;
    case SHMBW_OP_LIST:
      return serve_list;
    case SHMBW_OP_STATUS:
      return serve_status;
    case SHMBW_OP_POOL_CREATE:
      return serve_pool_create;
    case SHMBW_OP_POOL_JOIN:
      return serve_pool_join;
    case SHMBW_OP_POOL_LEAVE:
      return serve_pool_leave;
    case SHMBW_OP_POOL_SEGMENT:
      return serve_pool_segment;
    case SHMBW_OP_QUEUE_OPEN:
      return serve_queue_open;
    case SHMBW_OP_QUEUE_CLOSE:
      return serve_queue_close;
    case SHMBW_OP_LANE_THROUGH:
      return serve_lane_through;
    case SHMBW_OP_QUEUE_HOLD:
      return serve_queue_hold;
    case SHMBW_OP_POOL_DOORBELL:
      return serve_pool_doorbell;
    case SHMBW_OP_TICKET_REVOKE:
      return serve_ticket_revoke;
    case SHMBW_OP_TICKETS_RELEASE:
      return serve_tickets_release;
    case SHMBW_OP_SHELF_EMPTY:
      return serve_shelf_empty;
    case SHMBW_OP_WORLD_JOIN:
      return serve_world_join;
    case SHMBW_OP_WORLD_LEAVE:
      return serve_world_leave;
    case SHMBW_OP_WORLD_POOL:
      return serve_world_pool;
    case SHMBW_OP_REF_CREATE:
      return serve_ref_create;
    case SHMBW_OP_REF_FORK:
      return serve_ref_fork;
    case SHMBW_OP_REF_TAKE:
      return serve_ref_take;
    case SHMBW_OP_REF_RELEASE:
      return serve_ref_release;
    case SHMBW_OP_REF_SETTLE:
      return serve_ref_settle;
    case SHMBW_OP_REF_ASK:
      return serve_ref_ask;
    case SHMBW_OP_GPU_DEVICE:
      return serve_gpu_device;
    case SHMBW_OP_GPU_PUBLISH:
      return serve_gpu_publish;
    case SHMBW_OP_GPU_CHUNKS:
      return serve_gpu_chunks;
    case SHMBW_OP_GPU_OPEN:
      return serve_gpu_open;
    case SHMBW_OP_GPU_MORE:
      return serve_gpu_more;
    case SHMBW_OP_GPU_REPORT:
      return serve_gpu_report;
    case SHMBW_OP_GPU_RETIRE:
      return serve_gpu_retire;
    case SHMBW_OP_GPU_TIMELINE:
      return serve_gpu_timeline;
    case SHMBW_OP_GPU_PINNED:
      return serve_gpu_pinned;
    default:
      return nullptr;
  }
}

// As far as the sender knows the struct: what is wrong in it the handler tells.
template <class T>
T known_part(wire::Bytes bytes) {
  T out{};
  std::memcpy(&out, bytes.data(), std::min(bytes.size(), sizeof out));
  return out;
}

std::size_t descriptors_of_publications(const wire::PacketView& packet) {
  auto batch = wire::BatchView::open(packet);
  std::size_t sum = 0;
  for (std::size_t i = 0; batch && i < batch->count(); ++i)
    sum += gpu_descriptors_of(known_part<shmbw_gpu_publish>(batch->bytes_of(i)));
  return sum;
}

bool is_ring(const wire::PacketView& packet) {
  return packet.header.op == SHMBW_OP_POOL_DOORBELL &&
         known_part<shmbw_pool_doorbell>(packet.fixed).flags == SHMBW_DOORBELL_RING;
}

// The refusal is sent also where the header asks for no reply: such a header is not understood.
void refuse_aloud(const Request& request, Status status, std::string_view sentence) {
  shmbw_header answered = request.packet.header;
  answered.flags = static_cast<std::uint16_t>(answered.flags & ~SHMBW_HEADER_NO_REPLY);
  const wire::PacketView view{answered, request.packet.fixed, request.packet.rest};
  Request{request.world, request.session, view}.fail(status, sentence);
}

std::size_t descriptors_of(const shmbw_gpu_device& wish, std::uint16_t brought) {
  if ((wish.flags & ~std::uint32_t{SHMBW_GPU_DEVICE_KNOWN}) != 0) return std::min<std::uint16_t>(brought, 1);
  return (wish.flags & SHMBW_GPU_DEVICE_NODE_GIVEN) != 0 ? 1 : 0;
}

// How many a request brings, by its op and state (law 8). Flags that are not known say nothing about that.
std::size_t descriptors_of(const wire::PacketView& packet) {
  switch (packet.header.op) {
    case SHMBW_OP_POOL_DOORBELL:
      return known_part<shmbw_pool_doorbell>(packet.fixed).flags == SHMBW_DOORBELL_SET ? 1 : 0;
    case SHMBW_OP_GPU_DEVICE:
      return descriptors_of(known_part<shmbw_gpu_device>(packet.fixed), packet.header.n_fds);
    case SHMBW_OP_GPU_PUBLISH:
      return descriptors_of_publications(packet);
    case SHMBW_OP_GPU_CHUNKS:
      return std::size_t{2} * known_part<shmbw_gpu_chunks>(packet.fixed).count;
    default:
      return 0;
  }
}

}  // namespace

void dispatch(World& world, Session& session, const wire::PacketView& packet) {
  const shmbw_header& header = packet.header;
  const Request request{world, session, packet};
  ++world.requests;
  if (header.n_fds != descriptors_of(packet))
    return session.link->drop("descriptors in a request that takes none, or none in one that takes one");
  if (session.phase == Phase::refused) return session.link->drop("a request after HELLO was refused for good");
  const bool hello = header.op == SHMBW_OP_HELLO;
  if (!hello && !session.greeted()) return session.link->drop("a request before HELLO");
  bool one_way = header.op == SHMBW_OP_READY || header.op == SHMBW_OP_LANE_THROUGH;
  const bool may_be_silent = one_way || header.op == SHMBW_OP_RELEASE || header.op == SHMBW_OP_QUEUE_HOLD ||
                             header.op == SHMBW_OP_REF_RELEASE || header.op == SHMBW_OP_REF_SETTLE ||
                             header.op == SHMBW_OP_GPU_REPORT || is_ring(packet);
  // First of all: a broker that does not know a flag does not know what it does to the others.
  if ((header.flags & ~SHMBW_HEADER_KNOWN) != 0)
    return refuse_aloud(request, Status::unknown_flags, "the header has a flag that this broker does not know");
  if (request.silent() && !may_be_silent)
    return refuse_aloud(request, Status::invalid,
                        "no_reply is for READY, RELEASE, LANE_THROUGH, QUEUE_HOLD, POOL_DOORBELL with ring, "
                        "REF_RELEASE, REF_SETTLE and GPU_REPORT only");
  if (header.status != 0 && !one_way) return request.fail(Status::invalid, "a request's status must be 0");
  if (hello) {
    if (session.greeted()) return request.fail(Status::invalid, "HELLO was answered already on this connection");
    return serve_hello(world, session, packet);
  }
  Handler handler = handler_of(header.op);
  if (!handler)
    return request.fail(Status::unknown_op, "request " + std::to_string(header.op) + " is not known to this broker (" +
                                                world.facts.version + ")");
  handler(request);
}

}  // namespace shmb::daemon
