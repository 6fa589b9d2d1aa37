// SPDX-License-Identifier: Apache-2.0
// Packets with descriptors over a socket. A truncated packet or truncated control data closes every descriptor that
// arrived, and is reported as `malformed`, never as data. A dbus-daemon that forgot the first half had CVE-2020-12049.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "proto/codec.hpp"

namespace shmb::wire {

struct Incoming {
  enum class Kind { packet, would_block, end_of_file, malformed } kind = Kind::would_block;
  PacketView view;  // into the caller's buffer
  std::vector<Fd> fds;
  std::string reason;  // malformed: for the log ("descriptor table full or refused by an LSM", ...)
  // Malformed because of MSG_CTRUNC. The client maps it to status no_descriptors and gives back what the bytes grant:
  // `view` is the packet where its frame is whole but for the descriptors, else its header.size is 0.
  bool descriptors_lost = false;
};
// One recvmsg. `wait` blocks; else would_block.
Incoming receive_packet(int socket, std::span<std::byte> buffer, Direction direction, bool wait);

}  // namespace shmb::wire
