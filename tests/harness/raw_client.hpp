// SPDX-License-Identifier: Apache-2.0
// A client that is only the wire: one socket, packets made by hand, nothing hidden. It shares the codec with the
// broker and nothing with the library, so that a fault of the library cannot hide one of the broker.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.hpp"
#include "base/sys_process.hpp"
#include "base/sys_socket.hpp"
#include "proto/codec.hpp"
#include "proto/refusal.hpp"

namespace harness {

struct RawPacket {
  enum class Kind { packet, nothing, end_of_file, failed } kind = Kind::nothing;
  int error = 0;                 // failed: errno
  std::vector<std::byte> bytes;  // as received
  std::vector<shmb::Fd> fds;
  bool descriptors_lost = false;  // MSG_CTRUNC

  bool ok() const { return kind == Kind::packet && status() == 0; }
  shmbw_header header() const {
    shmbw_header header{};
    if (bytes.size() >= sizeof header) std::memcpy(&header, bytes.data(), sizeof header);
    return header;
  }
  std::int32_t status() const { return header().status; }
  bool is_event() const { return (header().op & SHMBW_EVENT) != 0; }
  // The fixed part, short ones filled up with zeros.
  template <class T>
  T fixed() const {
    T out{};
    std::size_t size =
        std::min<std::size_t>({sizeof out, header().fixed, bytes.size() - std::min(bytes.size(), kFront)});
    std::memcpy(&out, bytes.data() + kFront, size);
    return out;
  }
  // The bytes after the fixed part.
  std::string_view rest() const {
    std::size_t at = kFront + header().fixed;
    if (at >= bytes.size()) return {};
    return {reinterpret_cast<const char*>(bytes.data()) + at, bytes.size() - at};
  }
  template <class T>
  T element(std::size_t index) const {  // of a batch reply
    T out{};
    auto batch = fixed<shmbw_batch>();
    std::string_view all = rest();
    std::size_t at = index * batch.element_size;
    if (at < all.size())
      std::memcpy(&out, all.data() + at, std::min<std::size_t>({sizeof out, batch.element_size, all.size() - at}));
    return out;
  }
  std::string sentence() const { return status() == 0 ? std::string() : std::string(rest()); }

  static constexpr std::size_t kFront = sizeof(shmbw_header);
};

// How long tests wait for what is sure to come: a machine with other things to do may take its time.
inline constexpr int kRawPatience = 30'000;  // milliseconds

class RawClient {
 public:
  RawClient() = default;
  explicit RawClient(shmb::Fd socket) : socket_(std::move(socket)) {}

  static RawClient connect(const std::string& path) {
    auto socket = shmb::sys::seqpacket_socket(false);
    if (!socket || !shmb::sys::connect_path(socket->get(), path)) return RawClient();
    return RawClient(std::move(*socket));
  }

  bool connected() const { return static_cast<bool>(socket_); }
  int fd() const { return socket_.get(); }
  void close() { socket_.reset(); }

  bool send(shmb::wire::Bytes packet, std::span<const int> fds = {}) {
    return shmb::sys::send(socket_.get(), packet, {}, fds, true).has_value();
  }

  // One packet of any kind; `nothing` after `milliseconds`.
  RawPacket receive(int milliseconds = kRawPatience) {
    RawPacket packet;
    auto ready = shmb::sys::poll_readable(socket_.get(), std::int64_t{milliseconds} * 1'000'000);
    if (ready && !*ready) return packet;
    packet.bytes.resize(SHMBW_MAX_MESSAGE);
    auto received = shmb::sys::receive(socket_.get(), packet.bytes, packet.fds, false);
    if (!received) {
      packet.bytes.clear();
      if (received.error().value == EAGAIN) return packet;
      packet.kind = RawPacket::Kind::failed;
      packet.error = received.error().value;
      return packet;
    }
    packet.bytes.resize(received->size);
    packet.descriptors_lost = received->control_truncated;
    packet.kind = received->end_of_file ? RawPacket::Kind::end_of_file : RawPacket::Kind::packet;
    return packet;
  }

  // The reply with this tag; events that come before it are kept for `event`.
  RawPacket reply(std::uint64_t tag, int milliseconds = kRawPatience) {
    std::int64_t deadline = shmb::sys::now_monotonic() + std::int64_t{milliseconds} * 1'000'000;
    for (;;) {
      std::int64_t left = (deadline - shmb::sys::now_monotonic()) / 1'000'000;
      RawPacket packet = receive(static_cast<int>(std::max<std::int64_t>(0, left)));
      if (packet.kind != RawPacket::Kind::packet) return packet;
      if (packet.is_event()) events_.push_back(std::move(packet));
      else if (packet.header().tag == tag) return packet;
    }
  }
  RawPacket event(int milliseconds = kRawPatience) {
    if (events_.empty()) return receive(milliseconds);
    RawPacket packet = std::move(events_.front());
    events_.pop_front();
    return packet;
  }

  // A request with a plain fixed part (and texts), and its reply.
  template <class T>
  std::uint64_t ask(std::uint16_t op, const T& fixed, std::string_view texts = {}, std::uint16_t flags = 0) {
    shmb::wire::Writer writer(buffer_);
    std::uint64_t tag = ++tag_;
    writer.begin(op, tag, shmb::Status::ok, fixed, flags);
    writer.text(texts);
    return send(writer.finish(0)) ? tag : 0;
  }
  template <class T>
  RawPacket call(std::uint16_t op, const T& fixed, std::string_view texts = {}) {
    std::uint64_t tag = ask(op, fixed, texts);
    return tag != 0 ? reply(tag) : lost();
  }
  // A batch request, and its reply.
  template <class T>
  RawPacket call_batch(std::uint16_t op, std::span<const T> elements, std::string_view texts = {}) {
    shmb::wire::Writer writer(buffer_);
    std::uint64_t tag = ++tag_;
    writer.begin_batch<T>(op, tag, elements.size());
    for (std::size_t i = 0; i < elements.size(); ++i) writer.element(i, elements[i]);
    writer.text(texts);
    return send(writer.finish(0)) ? reply(tag) : lost();
  }

  static shmbw_hello greeting() {
    shmbw_hello hello{};
    hello.version_min = hello.version_max = SHMBW_PROTOCOL;
    hello.pid = static_cast<std::uint32_t>(::getpid());
    if (auto start = shmb::sys::process_start_time(0)) hello.start_time = *start;
    return hello;
  }
  RawPacket hello() { return call(SHMBW_OP_HELLO, greeting()); }
  // One unnamed region of `length` bytes; its descriptor is in `fds`.
  RawPacket create(std::uint64_t length, std::string_view name = {}) {
    shmbw_create create{};
    create.length = length;
    create.name_len = static_cast<std::uint16_t>(name.size());
    return call_batch(SHMBW_OP_CREATE, std::span<const shmbw_create>(&create, 1), name);
  }
  RawPacket status() { return call(SHMBW_OP_STATUS, shmbw_status{}); }

 private:
  static RawPacket lost() {
    RawPacket packet;
    packet.kind = RawPacket::Kind::failed;
    packet.error = EPIPE;
    return packet;
  }

  shmb::Fd socket_;
  std::uint64_t tag_ = 0;
  std::deque<RawPacket> events_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(SHMBW_MAX_MESSAGE);
};

}  // namespace harness
