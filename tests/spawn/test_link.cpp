// SPDX-License-Identifier: Apache-2.0
// The supervisor's end of a rank's channel, by itself.
#include <doctest/doctest.h>
#include <sys/socket.h>

#include <algorithm>
#include <string>

#include "spawn/ranks/link.hpp"

TEST_CASE(
    "one look at a rank's channel takes all that it has said before its end, also what many reads have to fetch") {
  int pair[2] = {-1, -1};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
  shmb::spawn::Link link(shmb::Fd::adopt(pair[0]));
  shmb::Fd rank = shmb::Fd::adopt(pair[1]);
  const std::string frame = shmb::spawn::encode_frame(shmb::spawn::Op::set, 7, std::string(1000, 'x'));
  std::string all;
  for (int i = 0; i < 1000; ++i) all += frame;
  std::size_t sent = 0;
  for (bool room = true; room;) {  // until the socket is full
    const ssize_t size = ::send(rank.get(), all.data() + sent, std::min<std::size_t>(all.size() - sent, 32768),
                                MSG_DONTWAIT | MSG_NOSIGNAL);
    room = size > 0;
    if (room) sent += static_cast<std::size_t>(size);
  }
  REQUIRE(sent > std::size_t{3} << 15);  // more than one read takes
  rank.reset();
  (void)link.fill();
  std::size_t taken = 0;
  for (; auto said = link.next(); ++taken) CHECK(said->payload.size() == 1000);
  CHECK(taken == sent / frame.size());
  CHECK_FALSE(link.fill());  // the end
}
