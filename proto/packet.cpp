// SPDX-License-Identifier: Apache-2.0
// One recvmsg, then the frame's rules. After any fault the descriptors that arrived are closed here: they die with
// the vector, on every path that is not a whole packet.
#include "proto/packet.hpp"

#include <cerrno>

#include "base/sys_socket.hpp"
#include "base/text.hpp"

namespace shmb::wire {
namespace {

Incoming malformed(std::string reason, bool descriptors_lost = false) {
  Incoming incoming;
  incoming.kind = Incoming::Kind::malformed;
  incoming.reason = std::move(reason);
  incoming.descriptors_lost = descriptors_lost;
  return incoming;
}

}  // namespace

Incoming receive_packet(int socket, std::span<std::byte> buffer, Direction direction, bool wait) {
  Incoming incoming;
  auto received = sys::receive(socket, buffer, incoming.fds, wait);
  // A peer that closes with packets of ours unread makes one call fail (unix(7)), before what it had sent and the end
  // are read.
  if (!received && received.error().value == ECONNRESET) {
    incoming.fds.clear();
    received = sys::receive(socket, buffer, incoming.fds, false);
  }
  if (!received) {
    incoming.fds.clear();
    switch (received.error().value) {
      case EAGAIN:
      case ENOMEM:  // passes: the packet stays where it is
      case ENOBUFS:
        return incoming;
      case ECONNRESET:
      case EPIPE:
      case ENOTCONN:
        incoming.kind = Incoming::Kind::end_of_file;
        return incoming;
      default:
        return malformed("recvmsg: " + errno_text(received.error().value));
    }
  }
  if (received->end_of_file) {
    // An empty packet looks like this too unless it carried descriptors; either way nothing more is read.
    if (!incoming.fds.empty() || received->control_truncated) return malformed("empty packet with descriptors");
    incoming.kind = Incoming::Kind::end_of_file;
    return incoming;
  }
  // This comes first: lost descriptors look like descriptors that were never sent, so other rules would mislead.
  if (received->control_truncated) {
    Incoming lost = malformed("descriptors were cut off: descriptor table full, too many, or refused by an LSM", true);
    const Bytes bytes(buffer.data(), received->size);
    shmbw_header header{};
    if (bytes.size() >= sizeof header) std::memcpy(&header, bytes.data(), sizeof header);
    if (auto view = open_packet(bytes, header.n_fds, direction)) lost.view = *view;
    return lost;
  }
  if (received->bad_control) return malformed("control data that is not a whole number of descriptors");
  if (received->truncated) return malformed("packet longer than " + std::to_string(buffer.size()) + " bytes");

  auto view = open_packet(Bytes(buffer.data(), received->size), incoming.fds.size(), direction);
  if (!view) return malformed(malformed_text(view.error()));
  incoming.kind = Incoming::Kind::packet;
  incoming.view = *view;
  return incoming;
}

}  // namespace shmb::wire
