// SPDX-License-Identifier: Apache-2.0
// The control channel between a rank and its supervisor: a stream socket with framed messages. This is the
// supervisor's end, which never blocks and never believes: a rank that sends nonsense or more than is allowed loses
// its channel, nothing else.
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
  forked,     // of the zygote: pids by local rank
  failed,     // of the zygote: a sentence
  cancel,     // the request of that tag is not waited for any more
  lent,       // a ticket that ends with the parent's session is about to be made
  throwing,   // when, type: an exception that nothing in the function catches is on its way
  heard,      // when: a call told this rank that somebody else is gone
  // Requests; each is answered once.
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
  begin = 64,  // who it is and what to run; to the fork server: the same, of its first rank
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
inline constexpr std::size_t kMostCauses = std::size_t{512} << 10;  // all their texts together
inline constexpr std::size_t kMostPayload = kMostText + (std::size_t{1} << 20);

std::string encode_frame(Op op, std::uint64_t tag, std::string_view payload, std::uint16_t status = 0);

// The variable that says which descriptor is the channel, and what the process is.
inline constexpr const char* kControlVariable = "SHMBROKER_CONTROL";
inline constexpr const char* kZygoteVariable = "SHMBROKER_ZYGOTE";  // the channels of its children, with commas
enum class Role { rank, zygote, command };
std::string control_text(Role role, int fd);  // "rank:5:INODE"
struct ControlPlace {
  Role role = Role::rank;
  int fd = -1;
};
// Nothing where the text is none, or the descriptor is not that socket (any more).
std::optional<ControlPlace> find_control(const char* text);

class Link {
 public:
  Link() = default;
  explicit Link(Fd socket) : socket_(std::move(socket)) {}
  int fd() const { return socket_.get(); }
  bool open() const { return static_cast<bool>(socket_); }
  void close() { socket_.reset(); }
  // poll's events: what it waits for.
  short events() const;
  // Reads what is there. False: the other end is closed, or said what cannot be.
  bool fill();
  std::optional<Frame> next();
  // Whether another request may be taken: what is answered already waits in moderate size.
  bool takes() const;
  // Nobody is there any more to read answers; what was said can still be taken.
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
