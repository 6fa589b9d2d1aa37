// SPDX-License-Identifier: Apache-2.0
// See ring_rules.hpp.
#include "daemon/transport/ring_rules.hpp"

#include <liburing.h>

#include <cstdint>
#include <vector>

namespace shmb::daemon {

int restrict_ring(io_uring& ring) {
  std::vector<io_uring_restriction> allowed;
  const auto operation = [&](std::uint8_t code) {
    io_uring_restriction one{};
    one.opcode = IORING_RESTRICTION_SQE_OP;
    one.sqe_op = code;
    allowed.push_back(one);
  };
  for (const io_uring_op code : {IORING_OP_RECVMSG, IORING_OP_POLL_ADD, IORING_OP_ASYNC_CANCEL})
    operation(static_cast<std::uint8_t>(code));
#ifdef SHMB_TEST_SEAM
  operation(IORING_OP_NOP);  // stands for a receive that fails
#endif
  io_uring_restriction flags{};
  flags.opcode = IORING_RESTRICTION_SQE_FLAGS_ALLOWED;
  flags.sqe_flags = IOSQE_BUFFER_SELECT;
  allowed.push_back(flags);
  return io_uring_register_restrictions(&ring, allowed.data(), static_cast<unsigned>(allowed.size()));
}

}  // namespace shmb::daemon
