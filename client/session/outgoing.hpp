// SPDX-License-Identifier: Apache-2.0
// The packets of one session on their way to the broker, in the order of their numbers. The number of a packet is its
// tag. HELLO has number 1.
//
//   | kept: sent, and perhaps never served | waiting: not sent yet |
//   ^ front                                ^ sent_                 ^ end
//
// Without the feature RESUME a packet leaves the queue when it has been sent. With it the packet stays, with copies of
// its descriptors, until the broker has answered it or a later one. Each broker that takes over tells the number of the
// last packet that was served. Then all from the first that is missing wait again, and are sent in the same order. The
// first packet that is sent from then on has the flag `resumed`: the library has the answers to all before it.
//
// The broker serves one request after the other, and none while an answer is unread. So the answer to a packet is the
// acknowledgement of all packets before it. A one-way message has no answer. After `kOneWays` of them the channel asks
// for one.
//
// A packet that cannot be kept, for want of memory or descriptors, is sent all the same. Until an answer to it or a
// later one has come, the session cannot be resumed.
//
// No locks: the channel's mutex guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/fd.hpp"

namespace shmb::client {

class Outgoing {
 public:
  static constexpr std::size_t kOneWays = 64;

  struct Packet {
    std::uint64_t number = 0;
    bool answered = false;  // the broker answers it
    std::vector<std::byte> bytes;
    std::vector<Fd> fds;
  };

  // Whether sent packets are kept. HELLO that offers RESUME turns it on, and an answer that does not grant it off.
  void keep(bool on) noexcept;
  bool keeps() const { return keeps_; }

  std::uint64_t next_number() const { return last_ + 1; }
  // Writes the next number into it. Call it before each try to send it.
  void stamp(std::span<std::byte> packet) const;
  // Gives the packet the next number, and puts it behind those that wait.
  void add(std::span<const std::byte> packet);
  bool waits() const { return sent_ < count_; }
  std::size_t waiting() const { return count_ - sent_; }
  const Packet& first() const { return at(sent_); }  // that waits
  void first_was_sent() noexcept;
  // The caller has sent a packet that was stamped itself, while none waits.
  void was_sent(std::span<const std::byte> packet, std::span<const int> descriptors) noexcept;

  // The answer to that packet has come.
  void answered(std::uint64_t number) noexcept;
  // All packets behind the one with that number wait again, and those that were not answered. "" or why the session
  // cannot continue.
  std::string resume(std::uint64_t served);

  std::size_t one_ways() const { return one_ways_; }  // kept, or waiting
  // Whether it is time for a request whose answer acknowledges the one-way messages, and whether one is under way.
  bool wants_answer() const { return keeps_ && one_ways_ >= kOneWays && !awaits_answer(); }
  bool awaits_answer() const { return asked_ > answered_; }
  void asked(std::uint64_t number) { asked_ = number; }
  std::size_t kept() const { return sent_; }

  void clear() noexcept { *this = Outgoing(); }

 private:
  // A ring: packets that are gone leave their memory to later ones, so a request costs no allocation.
  Packet& at(std::size_t i) { return ring_[(front_ + i) & (ring_.size() - 1)]; }
  const Packet& at(std::size_t i) const { return ring_[(front_ + i) & (ring_.size() - 1)]; }
  Packet& fill(std::span<const std::byte> packet);  // the place behind the last, which is not counted yet
  bool keep_copy(std::span<const std::byte> packet, std::span<const int> descriptors) noexcept;
  void push() noexcept;
  void pop() noexcept;

  bool keeps_ = false;
  bool resumed_ = false;  // the next packet is the first after RESUME
  std::vector<Packet> ring_;
  std::size_t front_ = 0, count_ = 0;
  std::size_t sent_ = 0;  // how many of them have been sent
  std::size_t one_ways_ = 0;
  // Numbers: given last, sent at least once, answered, of the last packet that was sent and could not be kept, and of
  // the last request that was sent for its answer alone.
  std::uint64_t last_ = 0, most_sent_ = 0, answered_ = 0, hole_ = 0, asked_ = 0;
};

}  // namespace shmb::client
