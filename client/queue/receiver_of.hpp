// SPDX-License-Identifier: Apache-2.0
// The part of a receiver that depends on the kind of its lanes. The compiler knows the lane here, so the short ways
// have its code inline.
#pragma once

#include "client/lane/broadcast.hpp"
#include "client/lane/mpmc.hpp"
#include "client/lane/spsc.hpp"
#include "client/queue/receiver.hpp"

namespace shmb::client {

template <Lane L>
class ReceiverOf final : public Receiver {
 public:
  explicit ReceiverOf(QueueState& state) : Receiver(state) {}
  Now receive_now(Message& message, bool keep, std::int64_t wait) override;
  void pass_on() override;

 private:
  using End = typename L::Receiver;
  static End& end(In& in) { return static_cast<End&>(*in.it); }
  static const End& end(const In& in) { return static_cast<const End&>(*in.it); }

  bool try_look() override;
  bool message_waits() override;
  bool behind_borrowed(In& in);
  void look_for_lanes() override;
  void leave_read_lanes() override;
  bool read_to_its_end() const override;
  void give_back(In& in, std::uint64_t position) override;
  void wake_writers(In& in) override;
  bool competes() const override { return L::competing; }
  std::size_t take_plain(std::span<Message* const> messages) override;
  Now take_in_order(Message& message, bool keep, std::int64_t wait);
  Now take_claimed(Message& message, std::int64_t wait);
  Now why_nothing(Message& message, In& in, std::int64_t wait);
  bool await_answer(In& in, std::int64_t wait);
};

}  // namespace shmb::client
