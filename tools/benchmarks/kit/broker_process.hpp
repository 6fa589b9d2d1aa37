// SPDX-License-Identifier: Apache-2.0
// A private broker of its own, with default limits, in a folder of its own, for one family of figures.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tools/benchmarks/kit/figure.hpp"
#include "tools/benchmarks/kit/process.hpp"

namespace shmb::bench {

class BrokerProcess {
 public:
  // engine: "auto", "epoll" or "io_uring". Returns once the socket answers.
  static BrokerProcess start(const Settings& settings, Core core, const std::string& engine,
                             const std::vector<std::string>& more_arguments = {}, bool own_session = false);
  // A system broker that runs as `uid`: for clients of several users. Only root can start it.
  static BrokerProcess start_system(const Settings& settings, Core core, const std::string& engine, unsigned uid);
  const std::string& socket() const { return socket_; }
  // In order, by SIGTERM. A broker with keepers has to end so: its keepers replace each of the three that is killed.
  void end();
  pid_t pid() const { return child_.pid(); }
  const std::string& engine() const { return engine_; }  // the one in use

 private:
  static BrokerProcess start_with(const Settings& settings, Core core, const std::string& engine,
                                  const std::vector<std::string>& mode, bool own_session,
                                  const std::string& directory_in_folder);
  std::unique_ptr<TemporaryFolder> folder_;
  Child child_;
  std::string socket_, engine_;
};

}  // namespace shmb::bench
