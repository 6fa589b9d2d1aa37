// SPDX-License-Identifier: Apache-2.0
// A private broker of its own, with default limits, in a folder of its own, for one family of figures.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tools/benchmarks/figure.hpp"
#include "tools/benchmarks/process.hpp"

namespace shmb::bench {

class BrokerProcess {
 public:
  // engine: "auto", "epoll" or "io_uring". Returns once the socket answers.
  static BrokerProcess start(const Settings& settings, Core core, const std::string& engine,
                             const std::vector<std::string>& more_arguments = {}, bool own_session = false);
  const std::string& socket() const { return socket_; }
  pid_t pid() const { return child_.pid(); }
  const std::string& engine() const { return engine_; }  // the one in use

 private:
  std::unique_ptr<TemporaryFolder> folder_;
  Child child_;
  std::string socket_, engine_;
};

}  // namespace shmb::bench
