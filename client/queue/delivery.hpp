// SPDX-License-Identifier: Apache-2.0
// Makes a message for the application of one that a receiver has found in its lane.
//
// The receiver has copied the cell and checked the copy. Delivery follows what the copy names: a slot, a list of parts
// in the cell, in a slot or in a region, and the regions among those parts. Everything that a peer wrote elsewhere is
// copied once more and checked on the copy (read_list).
//
// A message is kept or borrowed. The slots of a kept message have this process' own bits, set before the cell is done.
// The slots of a borrowed one are protected by its cell, which is done later. With drop-oldest the cell protects
// nothing: the bits are set first, and then the cell is looked at once more (LaneReceiver::confirm).
//
// The outcome says what the receiver does with the cell. An error means that the message was not taken, and that the
// receive can be repeated. The lock must be held. Only regions, and memory that is not mapped yet, ask the broker.
#pragma once

#include "client/lane/lane.hpp"
#include "client/queue/message.hpp"
#include "client/queue/queue_state.hpp"

namespace shmb::client {

class Delivery {
 public:
  enum class Outcome : std::uint8_t {
    taken,     // the cell is done, and the message is the application's
    lent,      // the cell is done, and the message belongs to the application until its next receive
    borrowed,  // the cell is not done until the message is
    lost,      // it was overwritten meanwhile
    broken,    // it names something impossible: the cell is done, and the application gets an error
  };
  // `competing`: other receivers may get the message if this process does not say that it is done.
  Delivery(QueueState& state, Message& message, const LaneReceiver::Received& got, LaneReceiver& lane, bool competing,
           std::int64_t map_timeout)
      : state_(state),
        message_(message),
        got_(got),
        lane_(lane),
        competing_(competing),
        map_timeout_(map_timeout != 0 ? map_timeout : state.spec.timeout) {}
  Result<Outcome> deliver(bool keep);
  // Of a borrowed list: the slot that it lies in.
  struct Container {
    std::uint32_t slot = pool::kNone, generation = 0;
  };
  const Container& container() const { return container_; }

 private:
  void deliver_bytes();
  Result<Outcome> deliver_slot(bool keep);
  Result<Outcome> deliver_list(bool keep);
  bool keep_slot(Message::Part& part);
  void attach_parts(const Error* unanswered);
  void attach_wanted(const Error* unanswered, std::vector<Message::Sharers>& too_much);
  Pool& pool() const { return *state_.pool; }

  QueueState& state_;
  Message& message_;
  const LaneReceiver::Received& got_;
  LaneReceiver& lane_;
  const bool competing_;
  const std::int64_t map_timeout_;  // for the broker, where the message itself lies in memory that is not mapped yet
  Container container_;
};

}  // namespace shmb::client
