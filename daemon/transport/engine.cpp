// SPDX-License-Identifier: Apache-2.0
// The choice of the engine. It is made once, at start, and `status` shows its reason.
#include "daemon/transport/engine.hpp"

#include "base/kernel.hpp"
#include "base/text.hpp"

namespace shmb::daemon {
namespace {

Result<ChosenEngine> epoll_because(std::string reason) {
  auto engine = make_epoll_engine();
  if (!engine) return system_failure(engine.error(), "epoll for the event loop");
  return ChosenEngine{std::move(*engine), false, std::move(reason)};
}

}  // namespace

#ifndef SHMB_HAVE_URING
Result<std::unique_ptr<Engine>> make_uring_engine(std::string&) {
  return error(Status::unsupported, "this shmbrokerd was built without liburing");
}
#endif

Result<ChosenEngine> choose_engine(EngineChoice choice) {
  if (choice == EngineChoice::epoll) return epoll_because("epoll: as configured");
  std::string how;
  Result<std::unique_ptr<Engine>> ring =
      kernel().io_uring ? make_uring_engine(how) : error(Status::unsupported, kernel().io_uring_reason);
  if (ring) return ChosenEngine{std::move(*ring), true, "io_uring: " + how};
  if (choice == EngineChoice::io_uring)
    return error(Status::unsupported, "engine io_uring does not work here: " + ring.error().sentence +
                                          "; use --engine epoll or --engine auto");
  return epoll_because("epoll: " + ring.error().sentence);
}

}  // namespace shmb::daemon
