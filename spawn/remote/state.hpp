// SPDX-License-Identifier: Apache-2.0
// The records of remote: what has arrived, the outcome of a call, a value at its owner, a reference to one, a request.
// The lock of the worker guards them (monitor.hpp), except where it is said otherwise. Handles hold the agent to
// keep the worker alive. At their end they report to one class, their `home`.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/region/region.hpp"
#include "spawn/remote/message.hpp"

namespace shmb::remote {

class Agent;
class References;
class Server;
struct Reference;

// Bytes, regions and references that arrived, or that were kept. Not guarded: it has one user.
struct Content {
  std::string data;
  client::Region::Handle bytes;  // instead of data
  std::uint64_t bytes_length = 0;
  SlotBytes slot;  // likewise. Not for a value: that stays, so its bytes are in a region
  std::vector<client::Region::Handle> regions;
  std::vector<std::shared_ptr<Reference>> references;

  std::string_view view() const {
    if (slot) return slot.view();
    if (!bytes) return data;
    return {reinterpret_cast<const char*>(bytes->data()), bytes_length};
  }
};

// The payload of a message to send. It is borrowed, except `leased`: the worker's leases on regions that other sessions
// of the process have.
struct Payload {
  std::string_view data;
  client::Region* bytes = nullptr;  // where data lies, if that is a region of its own already
  std::vector<client::Region*> regions;
  std::vector<client::Region::Handle> leased;
  std::vector<std::shared_ptr<Reference>> references;
};

// A message of another worker, with the references that it carries. It has one user at a time.
struct Arrived {
  Incoming message;
  std::vector<std::shared_ptr<Reference>> references;
};

inline Content content_of(Arrived& arrived) {
  Incoming& message = arrived.message;
  return {std::move(message.data), std::move(message.bytes),   message.bytes_length,
          std::move(message.slot), std::move(message.regions), std::move(arrived.references)};
}

struct Future {
  enum class State : std::uint8_t { pending, done, failed };
  std::shared_ptr<Agent> agent;
  State state = State::pending;
  Content content;
  Failure failure;
  std::vector<std::function<void()>> then;
  // While it is pending:
  std::uint64_t call = 0;
  Kind kind = Kind::call;
  std::uint32_t to = 0, to_life = 0;
  std::string function;
  RefId reference;
  std::shared_ptr<Reference> subject;                        // fetch, type: its value must not go before the answer
  std::int64_t began = 0, deadline = 0;                      // CLOCK_MONOTONIC; 0: none
  std::multimap<std::int64_t, std::uint64_t>::iterator due;  // with a deadline
  bool settling = false;  // a creation whose deadline has passed: the broker is asked for its outcome
};

struct Request;

// A value at its owner.
struct Value {
  enum class State : std::uint8_t { pending, ready, failed };
  ~Value();
  RefId id;  // none: no other worker knows of it
  State state = State::pending;
  bool is_object = false;
  bool booked = false;  // the broker has an entry for it: other workers may hold references
  void* object = nullptr;
  Content content;
  std::string type;
  Failure failure;
  std::vector<std::unique_ptr<Request>> waiting;
  void (*drop)(void* context, void* object) = nullptr;
  void* context = nullptr;
};

// The state of one reference in this worker, for any number of forks that it holds.
struct Known {
  enum class State : std::uint8_t { registered, ready, failed };
  RefId id;
  std::uint32_t owner = 0, owner_life = 0;
  bool confirmed = false;
  State state = State::registered;
  std::optional<Failure> failure;  // final: every use ends with it
  std::shared_ptr<Future> type;
};

struct Reference {
  ~Reference();
  std::shared_ptr<Agent> agent;
  References* home = nullptr;
  std::shared_ptr<Known> known;
  RefId fork;                    // none: a local value that this handle has not booked
  std::shared_ptr<Value> value;  // at the owner, once it is known
  std::shared_ptr<Future> created;
};

// A request of another worker, until it is answered.
struct Request {
  ~Request();
  std::shared_ptr<Agent> agent;
  Server* home = nullptr;
  bool counted = false;  // as running
  Head head;
  std::string function;
  Content content;
  std::shared_ptr<Value> value;  // create: what it makes. fetch: what is asked for
};

}  // namespace shmb::remote
