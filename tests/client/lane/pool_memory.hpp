// SPDX-License-Identifier: Apache-2.0
// A pool in the memory of this process, laid out as the broker does it and with a directory filled in by hand: for
// tests of the algorithm alone, where each thread is a participant and the case itself is the broker.
#pragma once

#include <doctest/doctest.h>

#include <atomic>
#include <climits>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/sys_futex.hpp"
#include "client/lane/broadcast.hpp"
#include "client/lane/mpmc.hpp"
#include "client/lane/participant.hpp"
#include "client/lane/spsc.hpp"
#include "proto/pool_layout.hpp"
#include "tests/harness/emulator.hpp"

namespace pool_tests {

using shmb::client::BroadcastReceiver;
using shmb::client::BroadcastSender;
using shmb::client::Deadline;
using shmb::client::Held;
using shmb::client::HeldList;
using shmb::client::LaneReceiver;
using shmb::client::LaneSender;
using shmb::client::MpmcReceiver;
using shmb::client::MpmcSender;
using shmb::client::Participant;
using shmb::client::SlotRange;
using shmb::client::SpscReceiver;
using shmb::client::SpscSender;
using shmb::client::Step;
using shmb::pool::CellWord;
using shmb::pool::ParticipantState;
using shmb::pool::QueueKind;
using Look = LaneReceiver::Look;
using Room = LaneSender::Room;
namespace pool = shmb::pool;

// Runs `action` when the calling thread comes to a step, once.
class AtStep {
 public:
  AtStep(Step step, std::function<void()> action, int times = 1) {
    wanted() = step;
    act() = std::move(action);
    left() = times;
    shmb::client::step_hook = [](Step now) {
      if (now != wanted() || left() == 0) return;
      --left();
      act()();
    };
  }
  AtStep(const AtStep&) = delete;
  AtStep& operator=(const AtStep&) = delete;
  ~AtStep() { shmb::client::step_hook = nullptr; }

 private:
  static Step& wanted() {
    static thread_local Step step{};
    return step;
  }
  static std::function<void()>& act() {
    static thread_local std::function<void()> action;
    return action;
  }
  static int& left() {
    static thread_local int times = 0;
    return times;
  }
};

class PoolMemory {
 public:
  static constexpr std::uint32_t kSlotBytes = 256;

  explicit PoolMemory(std::uint32_t slots, std::initializer_list<std::uint32_t> live = {0, 1, 2}) {
    pool::Shape shape;
    shape.slots = slots;
    REQUIRE(pool::valid(shape));
    directory_ = area(pool::directory_bytes(shape));
    control_ = area(pool::control_bytes(shape));
    view_ = pool::lay_out(shape, 1, 1, directory_, control_);
    for (const std::uint32_t index : live) set(index, 1, ParticipantState::live);
    data_ = std::vector<std::uint64_t>(slots * kSlotBytes / 8);
    next_lane_ = view_.header().lane_memory;
    pool::SegmentEntry& segment = view_.segment(0);
    segment.first_slot = 0;
    segment.slots = slots;
    segment.slot_size = segment.stride = kSlotBytes;
    segment.in_use.store(slots > 0, std::memory_order_release);
  }
  PoolMemory(const PoolMemory&) = delete;
  PoolMemory& operator=(const PoolMemory&) = delete;

  // The slots from `first` on are a class of their own.
  void split(std::uint32_t first) {
    pool::SegmentEntry &all = view_.segment(0), &rest = view_.segment(1);
    rest.first_slot = first;
    rest.slots = all.slots - first;
    rest.slot_size = rest.stride = 2 * kSlotBytes;
    all.slots = first;
    rest.in_use.store(1, std::memory_order_release);
  }

  const pool::View& view() const { return view_; }
  SlotRange all() const { return {0, view_.slots()}; }
  std::uint64_t mask(std::uint32_t slot) const { return view_.slot(slot).holders.load(); }
  std::span<std::uint64_t> data(std::uint32_t slot) {
    return std::span(data_).subspan(slot * (kSlotBytes / 8), kSlotBytes / 8);
  }
  void set(std::uint32_t index, std::uint32_t life, ParticipantState state) {
    view_.participant(index).stamp.store(pool::Stamp{life, static_cast<std::uint8_t>(state)}.word(),
                                         std::memory_order_seq_cst);
    view_.header().change.fetch_add(1);
  }
  // The broker's work after a participant died or left.
  void wake(std::uint32_t index) {
    view_.wait(index).event.fetch_add(1);
    (void)shmb::sys::futex_wake(view_.wait(index).event, INT_MAX);
  }
  void open_readers(std::uint64_t bits) { view_.queue(0).readers = bits; }
  pool::LaneView lane(QueueKind kind, std::uint32_t cells, std::uint32_t cell_size = 64) {
    REQUIRE(view_.lane_fits(next_lane_, kind, cells, cell_size));
    std::byte* memory = view_.lane_memory(next_lane_);
    pool::prepare_lane(memory, kind, cells, cell_size);
    next_lane_ += pool::lane_bytes(kind, cells, cell_size);
    return {memory, kind, cells, cell_size};
  }
  void check_no_holders() const {
    for (std::uint32_t slot = 0; slot < view_.slots(); ++slot) CHECK(mask(slot) == 0);
  }

 private:
  std::span<std::byte> area(std::uint64_t bytes) {
    constexpr std::size_t kPage = 4096;
    memory_.emplace_back(static_cast<std::byte*>(::operator new(bytes, std::align_val_t{kPage})));
    std::memset(memory_.back().get(), 0, bytes);
    return {memory_.back().get(), bytes};
  }
  struct Free {
    void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t{4096}); }
  };
  std::vector<std::unique_ptr<std::byte, Free>> memory_;
  std::span<std::byte> directory_, control_;
  std::vector<std::uint64_t> data_;
  std::uint64_t next_lane_ = 0;
  pool::View view_;
};

inline std::span<const std::byte> bytes_of(const void* data, std::size_t size) {
  return {static_cast<const std::byte*>(data), size};
}
inline pool::Handle handle_of(const Participant& owner, std::uint32_t slot) {
  pool::Handle handle{};
  handle.slot = slot;
  handle.generation = owner.generation(slot);
  handle.length = PoolMemory::kSlotBytes;
  return handle;
}
// Fills a slot and checks it: every word says which message it belongs to.
inline void fill(std::span<std::uint64_t> data, std::uint64_t number) {
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = number * 1000003 + i;
}
inline bool filled(std::span<const std::uint64_t> data, std::uint64_t number) {
  for (std::size_t i = 0; i < data.size(); ++i)
    if (data[i] != number * 1000003 + i) return false;
  return true;
}

inline void send_number(LaneSender& lane, std::uint64_t number) {
  REQUIRE(lane.room() == Room::yes);
  lane.publish(sizeof(number), bytes_of(&number, sizeof(number)), {});
}
inline std::uint64_t number_of(const LaneReceiver::Received& received) {
  std::uint64_t number = 0;
  std::memcpy(&number, received.body, sizeof(number));
  return number;
}
// Sends a slot that the caller holds; the caller's own reference stays.
inline void send_slot(Participant& owner, LaneSender& lane, std::uint32_t slot) {
  REQUIRE(lane.room() == Room::yes);
  const pool::Handle handle = handle_of(owner, slot);
  owner.hold(slot);
  Held held;
  held.slot = slot;
  lane.publish(pool::kTagSlot, bytes_of(&handle, sizeof(handle)), std::move(held));
}
inline pool::Handle handle_in(const LaneReceiver::Received& received) {
  pool::Handle handle;
  std::memcpy(&handle, received.body, sizeof(handle));
  return handle;
}
inline std::uint32_t must_acquire(Participant& owner, const PoolMemory& memory) {
  const SlotRange all = memory.all();
  const auto slot = owner.acquire({&all, 1});
  REQUIRE(slot.has_value());
  return *slot;
}

}  // namespace pool_tests
