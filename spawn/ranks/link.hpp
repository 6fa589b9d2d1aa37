// SPDX-License-Identifier: Apache-2.0
// The control channel between a rank and its supervisor: a stream socket with framed messages. This is the supervisor's
// end. It never blocks and trusts nothing: a rank that sends nonsense, or more than is allowed, loses its channel and
// nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/fd.hpp"

namespace shmb::spawn {

enum class Op : std::uint16_t {
  // Rank to supervisor.
  hello = 1,  // spawn_child was reached
  finished,   // payload: the result
  raised,     // when, type, text, trace, causes
  forked,     // from the fork server: pids by local rank
  failed,     // from the fork server: a sentence
  cancel,     // no thread waits for the request of that tag any more
  lent,       // a ticket that ends with the parent's session is about to be made
  throwing,   // when, type: an exception is being thrown that nothing in the function catches
  heard,      // when: a call reported to this rank that another rank is gone
  // Requests. Each gets one reply.
  barrier = 16,
  broadcast,
  all_gather,
  set,
  get,
  wait,
  compare_exchange,
  erase,
  add,
  keys,
  // Supervisor to rank.
  begin = 64,  // rank number and what to run; to the fork server: the same, for its first rank
  reply
};

struct FrameHead {
  std::uint32_t size = 0;  // of the payload
  std::uint16_t op = 0;
  std::uint16_t status = 0;  // of replies
  std::uint64_t tag = 0;
};
struct Frame {
  Op op = Op::reply;
  std::uint16_t status = 0;
  std::uint64_t tag = 0;
  std::string payload;
};

inline constexpr std::size_t kMostText = std::size_t{16} << 20;     // of an error, all parts together
inline constexpr std::size_t kMostCauses = std::size_t{512} << 10;  // all texts of the causes together
inline constexpr std::size_t kMostPayload = kMostText + (std::size_t{1} << 20);

std::string encode_frame(Op op, std::uint64_t tag, std::string_view payload, std::uint16_t status = 0);

// The environment variable that names the descriptor of the channel and the role of the process.
inline constexpr const char* kControlVariable = "SHMBROKER_CONTROL";
inline constexpr const char* kZygoteVariable = "SHMBROKER_ZYGOTE";  // the channels of its children, separated by commas
enum class Role { rank, zygote, command };
std::string control_text(Role role, int fd);  // "rank:5:INODE"
struct ControlPlace {
  Role role = Role::rank;
  int fd = -1;
};
// nullopt: the text is empty or malformed, or the descriptor is not that socket (any more).
std::optional<ControlPlace> find_control(const char* text);

// Ownership: it owns the socket. Threads: one, the supervisor's. States: open; hung up (the peer reads nothing more,
// and what it has sent can still be taken); broken (it sent something impossible, and nothing of it is taken any more).
class Link {
 public:
  Link() = default;
  explicit Link(Fd socket) : socket_(std::move(socket)) {}
  int fd() const { return socket_.get(); }
  bool open() const { return static_cast<bool>(socket_); }
  void close() { socket_.reset(); }
  // The events of poll(2) that it waits for.
  short events() const;
  // Reads what is there. False: the other end is closed, or sent something impossible.
  bool fill();
  std::optional<Frame> next();
  // Whether another request may be taken: the replies that wait are of moderate size.
  bool takes() const;
  // The peer does not read replies any more. Messages that it sent can still be taken.
  void hang_up();
  bool broken() const { return broken_; }
  void send(Op op, std::uint64_t tag, std::string_view payload, std::uint16_t status = 0);
  void flush();

 private:
  Fd socket_;
  std::string in_, out_;
  std::size_t taken_ = 0, sent_ = 0;
  bool broken_ = false, hung_up_ = false;
};

}  // namespace shmb::spawn
