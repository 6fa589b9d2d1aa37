// SPDX-License-Identifier: Apache-2.0
// See crew.hpp.
#include "tools/benchmarks/kit/crew.hpp"

#include <errno.h>
#include <poll.h>

namespace shmb::bench {

void Crew::add(Core core, const std::function<void(int socket)>& body) {
  Member member;
  member.channel = Channel::make();
  member.child = Child::start(core, [&]() -> int {
    member.channel.ours.reset();
    favour();
    body(member.channel.theirs.get());
    return 0;
  });
  member.channel.theirs.reset();
  members_.push_back(std::move(member));
}

void Crew::wait_for(std::size_t member) {
  std::vector<pollfd> all;
  for (const Member& each : members_) all.push_back({each.channel.ours.get(), 0, 0});
  all[member].events = POLLIN;
  for (;;) {
    if (poll(all.data(), all.size(), -1) == -1) {
      if (errno == EINTR) continue;
      give_up("poll");
    }
    errno = 0;
    for (const pollfd& each : all)
      if ((each.revents & (POLLHUP | POLLERR)) != 0) give_up("a process of a measurement has ended");
    if ((all[member].revents & POLLIN) != 0) return;
  }
}

}  // namespace shmb::bench
