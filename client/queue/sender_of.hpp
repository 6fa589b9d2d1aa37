// SPDX-License-Identifier: Apache-2.0
// The part of a sender that depends on the kind of its lane. The compiler knows the lane here, so the short ways have
// its code inline.
#pragma once

#include "client/lane/broadcast.hpp"
#include "client/lane/mpmc.hpp"
#include "client/lane/spsc.hpp"
#include "client/queue/sender.hpp"

namespace shmb::client {

template <Lane L>
class SenderOf final : public Sender {
 public:
  explicit SenderOf(QueueState& state) : Sender(state) {}

  Now send_now(std::span<const std::byte> bytes) override {
    if (!state_.as_opened()) return Now::ask;
    const std::lock_guard lock(state_.me().lock());
    if (!is_clear() || bytes.size() > lane().body_room()) return Now::ask;
    if (const auto room = lane().room(); room != LaneSender::Room::yes) return why_not(room);
    lane().put(static_cast<std::uint8_t>(bytes.size()), bytes, {}, 0);
    return shown();
  }
  Now send_now(const Slot& slot) override {
    if (!state_.as_opened()) return Now::ask;
    const std::lock_guard lock(state_.me().lock());
    Pool& pool = *state_.pool;
    if (!pool.usable(slot) || slot.length > pool.slot_size(slot.index) || !is_clear()) return Now::ask;
    if (const auto room = lane().room(); room != LaneSender::Room::yes) return why_not(room);
    pool::Handle handle{};
    handle.slot = slot.index;
    handle.generation = slot.generation;
    handle.length = slot.length;
    state_.me().hold(slot.index);
    lane().put(pool::kTagSlot, std::as_bytes(std::span(&handle, 1)), Held{slot.index, nullptr}, 0);
    const Now now = shown();
    if (L::one_receiver && now == Now::done) pool.look_ahead(slot.index);
    return now;
  }
  void adopt(std::uint32_t number, std::uint32_t serial) override {
    pool::LaneEntry copy{};
    const auto view = state_.lane_view(number, serial, &copy);
    if (!view) return;
    out_.lane = number;
    out_.serial = serial;
    out_.to = copy.to;
    out_.to_life = copy.to_life;
    out_.it = std::make_unique<typename L::Sender>(state_.me(), *view, state_.flags, state_.index, let_go_regions());
  }
  void follow() override;

 private:
  typename L::Sender& lane() { return static_cast<typename L::Sender&>(*out_.it); }
  // The general way looks for expired messages, and reports a broken lane.
  Now why_not(LaneSender::Room room) const {
    return room == LaneSender::Room::full && !state_.has(pool::kQueueExpiring) ? Now::full : Now::ask;
  }
  Now shown() {
    lane().wake_readers(1);
    if (closed_meanwhile() != 0) return Now::ask;  // the general way reports it
    ++sent_;
    return Now::done;
  }
  void put_plain(const Plain& plain, std::size_t count, Batch& batch) override {
    if (!is_clear() || lane().room() != LaneSender::Room::yes) return;
    const std::size_t most = lane().body_room();
    do {
      const auto bytes = plain(batch.sent);
      if (!bytes || bytes->size() > most) return;
      lane().put(static_cast<std::uint8_t>(bytes->size()), *bytes, {}, 0);
      ++batch.unshown;
      ++batch.sent;
      ++sent_;
    } while (batch.sent != count && lane().room() == LaneSender::Room::yes);
  }
  void look_for_reader();
};

}  // namespace shmb::client
