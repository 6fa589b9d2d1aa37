// SPDX-License-Identifier: Apache-2.0
// Tells whether packets lie unread in a socket that is about to be closed.
#pragma once

namespace shmb::sys {

// True: a packet lies unread in this socket of packets, be it an empty one, or the kernel does not say. False is an
// answer that lasts only where the socket has been shut down.
bool holds_packet(int fd);

}  // namespace shmb::sys
