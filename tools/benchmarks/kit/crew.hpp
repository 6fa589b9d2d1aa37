// SPDX-License-Identifier: Apache-2.0
// Processes that do one measurement together, each waiting for the bench's commands. One that ends early ends the
// bench: the others may be spinning for an answer that will not come.
#pragma once

#include <functional>
#include <vector>

#include "tools/benchmarks/kit/process.hpp"

namespace shmb::bench {

class Crew {
 public:
  // Forks a process that runs `body` at high priority, where that is allowed. It ends with the crew, or when it waits
  // for a command and the bench is gone.
  void add(Core core, const std::function<void(int socket)>& body);
  std::size_t size() const { return members_.size(); }
  pid_t pid(std::size_t member) const { return members_[member].child.pid(); }

  template <class T>
  void tell(std::size_t member, const T& value) {
    bench::tell(members_[member].channel.ours.get(), value);
  }
  template <class T>
  T hear(std::size_t member) {
    wait_for(member);
    return bench::hear<T>(members_[member].channel.ours.get());
  }

 private:
  struct Member {
    Channel channel;
    Child child;
  };
  void wait_for(std::size_t member);
  std::vector<Member> members_;
};

}  // namespace shmb::bench
