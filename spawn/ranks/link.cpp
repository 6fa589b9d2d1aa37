// SPDX-License-Identifier: Apache-2.0
// See link.hpp. Once 16 MiB of replies wait for a rank that does not read them, its requests are not read either.
#include "spawn/ranks/link.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace shmb::spawn {

std::string encode_frame(Op op, std::uint64_t tag, std::string_view payload, std::uint16_t status) {
  const FrameHead head{static_cast<std::uint32_t>(payload.size()), static_cast<std::uint16_t>(op), status, tag};
  std::string out(reinterpret_cast<const char*>(&head), sizeof head);
  out.append(payload);
  return out;
}

namespace {

constexpr const char* kRoles[] = {"rank", "zygote", "command"};
constexpr std::size_t kMostWaiting = std::size_t{16} << 20;
constexpr std::size_t kMostSent = std::size_t{1} << 20;  // sent bytes that are kept in front of the others

}  // namespace

std::string control_text(Role role, int fd) {
  struct stat facts{};
  (void)::fstat(fd, &facts);
  return std::string(kRoles[static_cast<int>(role)]) + ":" + std::to_string(fd) + ":" + std::to_string(facts.st_ino);
}

std::optional<ControlPlace> find_control(const char* text) {
  if (text == nullptr) return std::nullopt;
  char role[8];
  int fd = -1;
  unsigned long long inode = 0;
  char more = 0;
  if (std::sscanf(text, "%7[a-z]:%d:%llu%c", role, &fd, &inode, &more) != 3 || fd < 0) return std::nullopt;
  struct stat facts{};
  if (::fstat(fd, &facts) != 0 || !S_ISSOCK(facts.st_mode) || facts.st_ino != inode) return std::nullopt;
  for (int i = 0; i < 3; ++i)
    if (std::strcmp(role, kRoles[i]) == 0) return ControlPlace{static_cast<Role>(i), fd};
  return std::nullopt;
}

short Link::events() const { return static_cast<short>((out_.size() > sent_ ? POLLOUT : 0) | (takes() ? POLLIN : 0)); }

bool Link::takes() const { return out_.size() - sent_ < kMostWaiting; }

bool Link::fill() {
  char chunk[65536];
  for (;;) {
    const ssize_t size = ::recv(socket_.get(), chunk, sizeof chunk, MSG_DONTWAIT);
    if (size > 0) {
      in_.append(chunk, static_cast<std::size_t>(size));
      if (in_.size() - taken_ > kMostPayload + sizeof chunk) return true;  // frames are taken first
      // that was all; an end of file shows the next time
      if (static_cast<std::size_t>(size) < sizeof chunk) return true;
      continue;
    }
    if (size < 0 && errno == EINTR) continue;
    return size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
  }
}

std::optional<Frame> Link::next() {
  const std::size_t there = in_.size() - taken_;
  FrameHead head;
  if (broken_ || there < sizeof head) return std::nullopt;
  std::memcpy(&head, in_.data() + taken_, sizeof head);
  if (head.size > kMostPayload) {
    broken_ = true;
    return std::nullopt;
  }
  if (there - sizeof head < head.size) return std::nullopt;
  Frame frame{static_cast<Op>(head.op), head.status, head.tag, in_.substr(taken_ + sizeof head, head.size)};
  taken_ += sizeof head + head.size;
  if (taken_ == in_.size() || taken_ > kMostWaiting) {
    in_.erase(0, taken_);
    taken_ = 0;
  }
  return frame;
}

void Link::send(Op op, std::uint64_t tag, std::string_view payload, std::uint16_t status) {
  if (!open() || hung_up_) return;
  out_ += encode_frame(op, tag, payload, status);
  flush();
}

void Link::hang_up() {
  hung_up_ = true;
  out_.clear();
  sent_ = 0;
}

void Link::flush() {
  while (open() && sent_ < out_.size()) {
    const ssize_t size = ::send(socket_.get(), out_.data() + sent_, out_.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      // Only once they are the larger part: otherwise every part that is sent would move the whole buffer.
      if (sent_ < kMostSent || sent_ < out_.size() / 2) return;
      out_.erase(0, sent_);
      sent_ = 0;
      return;
    }
    if (size < 0) break;  // the reader is gone
    sent_ += static_cast<std::size_t>(size);
  }
  out_.clear();
  sent_ = 0;
}

}  // namespace shmb::spawn
