// SPDX-License-Identifier: Apache-2.0
// QUEUE_OPEN, QUEUE_CLOSE, LANE_FINISHED and QUEUE_HOLD.
#include "daemon/pools/pool.hpp"
#include "daemon/serve/answer.hpp"

namespace shmb::daemon {

void serve_queue_open(const Request& request) {
  auto wish = request.read<shmbw_queue_open>();
  if (!wish) return;
  wire::TextReader texts(request.packet.rest);
  auto name = texts.take(wish->name_len);
  if (!name || !texts.done()) return request.refuse_struct(Status::invalid);
  auto place = usable_place_in(request.ledger.pools, request.session, wish->pool);
  if (!place) return request.fail(place.error());
  if (!make_lane_ready(request.session, *place->pool, place->index, *wish, *name)) return request.yield();
  auto opened = open_queue(request.ledger.pools, *place->pool, place->index, *wish, *name);
  place->pool->making = {};  // also of an open that was refused: others wait for it
  if (!opened) return request.fail(opened.error());
  request.answer(shmbw_queue_open_reply{opened->queue, opened->serial, opened->lane, opened->lane_serial});
}

// Also in a pool that is over: a participant that leaves tidies up.
void serve_queue_close(const Request& request) {
  auto wish = request.read<shmbw_queue_close>();
  if (!wish) return;
  if (!request.packet.rest.empty()) return request.refuse_struct(Status::invalid);
  auto place = place_in(request.ledger.pools, request.session, wish->pool);
  if (!place) return request.fail(place.error());
  auto left = close_queue(request.ledger.pools, *place->pool, place->index, *wish);
  if (!left) return request.fail(left.error());
  request.answer(shmbw_queue_close_reply{left->readers, left->writers});
}

// One-way: a faulty request is ignored, because there is no reply.
void serve_lane_finished(const Request& request) {
  Ledger& ledger = request.ledger;
  auto batch = wire::BatchView::open(request.packet);
  if (!batch) return;
  // A message concerns few pools, as a rule one. Each is settled once, however many elements name it.
  std::vector<std::uint64_t> told;
  for (std::size_t i = 0; i < batch->count(); ++i) {
    auto wish = batch->element<shmbw_lane_finished>(i);
    if (!wish) break;
    auto place = place_in(ledger.pools, request.session, wish->pool);
    if (!place || !lane_finished(*place->pool, place->index, *wish)) continue;
    if (std::ranges::find(told, wish->pool) == told.end()) told.push_back(wish->pool);
  }
  for (std::uint64_t id : told)
    if (Pool* pool = find_pool(ledger.pools, id)) lanes_changed(ledger.pools, *pool);
}

void serve_queue_hold(const Request& request) {
  Ledger& ledger = request.ledger;
  auto batch = open_batch<shmbw_queue_hold>(request, [](const shmbw_queue_hold&) { return std::size_t{0}; });
  if (!batch) return;
  BatchAnswer<shmbw_queue_hold_reply> answer(request, batch->count());
  for (std::size_t i = answer.first(); i < batch->count(); ++i) {
    if (answer.turn_is_over()) return;
    const shmbw_queue_hold wish = *batch->element<shmbw_queue_hold>(i);
    // Holds are given back also in a pool that is over.
    const bool drop = (wish.flags & SHMBW_QUEUE_HOLD_DROP) != 0;
    auto place = drop ? place_in(ledger.pools, request.session, wish.pool)
                      : usable_place_in(ledger.pools, request.session, wish.pool);
    auto held = place ? hold_region(ledger.pools, request.session, *place->pool, place->index, wish)
                      : Result<void>(std::unexpected(place.error()));
    if (held) answer.ok({});
    else answer.fail(held.error());
  }
  answer.send();
}

}  // namespace shmb::daemon
