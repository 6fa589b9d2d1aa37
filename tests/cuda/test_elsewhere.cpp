// SPDX-License-Identifier: Apache-2.0
// GPU memory seen from elsewhere: without a driver, with other devices visible, from another MIG instance, as another
// user, in another PID namespace. Only actors use the driver.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <filesystem>
#include <fstream>

#include "base/compat.hpp"
#include "base/fault.hpp"
#include "tests/cuda/meeting.hpp"
#include "tests/harness/skip.hpp"

namespace cuda_tests {

TEST_CASE("without driver, with a stub, an old driver or no device everything else works and the answer says which") {
  const harness::BrokerFixture broker(gpu_broker());
  const auto with = [&](const char* name, const std::string& value, Status expected) {
    CAPTURE(name);
    CAPTURE(value);
    const int status = Child::run([&] {
                         ::setenv(name, value.c_str(), 1);
                         auto session = connect(broker.socket());
                         ACTOR_CHECK(status_of(gpu::try_devices()) == expected);
                         auto refused = gpu::Region::try_allocate(session, 1);
                         ACTOR_CHECK(status_of(refused) == expected);
                         ACTOR_CHECK(std::strlen(refused.error().what()) > 20);
                         ACTOR_CHECK(status_of(gpu::Region::try_import(session, std::string("any"))) == expected);
                         ACTOR_CHECK(status_of(gpu::Region::try_adopt(session, 4096, 1)) == expected);
                         ACTOR_CHECK(status_of(gpu::Region::try_publish_set(session, "any", {})) == expected);
                         ACTOR_CHECK(status_of(gpu::Lease::try_lend(session, 4096, 1, nullptr)) == expected);
                         ACTOR_CHECK(status_of(gpu::Region::try_of_torch(session, nullptr)) == expected);
                         ACTOR_CHECK(gpu::try_dispatch(session));
                         ACTOR_CHECK(session.try_create(4096));
                         return 0;
                       }).wait();
    CHECK(status == 0);
  };
  const harness::TempDir folder;
  with("SHMB_LIBCUDA", folder.file("libcuda.so.1"), Status::no_driver);
  {
    std::ofstream(folder.file("garbage")) << "no library at all";
    with("SHMB_LIBCUDA", folder.file("garbage"), Status::no_driver);
  }
  with("FAKECUDA_STUB", "1", Status::stub_driver);
  with("FAKECUDA_DRIVER_VERSION", "11040", Status::driver_too_old);
  with("CUDA_VISIBLE_DEVICES", "", Status::no_device);
}

TEST_CASE("devices are known by UUID, however this process numbers them") {
  const Meeting meeting;
  const Gate published;
  auto producer = Child::run([&] {
    auto session = meeting.member();
    Device device(1);
    auto region = gpu::Region::allocate(session, 4 * kMiB, {.device = 1});
    ACTOR_CHECK(device.fill(region.pointer(), 4 * kMiB, 0x29) == 0);
    ACTOR_MUST(region.try_publish({.name = "w"}));
    published.open();
    ::pause();
    return 0;
  });
  REQUIRE(published.wait());
  CHECK(Child::run([&] {
          ::setenv("CUDA_VISIBLE_DEVICES", "1,0", 1);
          auto session = meeting.member();
          Device device(0);
          auto region = gpu::Region::try_import(session, std::string("w"));
          ACTOR_MUST(region);
          ACTOR_CHECK(region->info().device == 0);  // what the producer calls 1
          ACTOR_CHECK(device.all(region->pointer(), 4 * kMiB) == 0x29);
          return 0;
        }).wait() == 0);
  CHECK(Child::run([&] {  // the owner's device is hidden
          ::setenv("CUDA_VISIBLE_DEVICES", "0", 1);
          auto session = meeting.member();
          auto region = gpu::Region::try_import(session, std::string("w"));
          ACTOR_CHECK(status_of(region) == Status::device_not_visible);
          ACTOR_CHECK(std::string(region.error().what()).find("GPU-") != std::string::npos);
          return 0;
        })
            .wait() == 0);
  CHECK(Child::run([&] {  // nobody is blamed for that
          auto session = meeting.member();
          ACTOR_MUST(gpu::Region::try_import(session, std::string("w")));
          return 0;
        })
            .wait() == 0);
  CHECK(Child::run([&] {  // a device that cannot reach it
          ::setenv("FAKECUDA_P2P", "0", 1);
          auto session = meeting.member();
          auto region = gpu::Region::try_import(session, std::string("w"), {.devices = {0}});
          ACTOR_CHECK(status_of(region) == Status::not_supported);
          return 0;
        })
            .wait() == 0);
  producer.kill();
  CHECK(producer.wait() == 128 + SIGKILL);
}

TEST_CASE("memory of one MIG instance is refused to another with that reason") {
  const Meeting meeting;
  const Gate published;
  auto producer = Child::run([&] {
    ::setenv("FAKECUDA_MIG", "1", 1);
    return publish_w(meeting, 2, published);
  });
  REQUIRE(published.wait());
  CHECK(Child::run([&] {
          ::setenv("FAKECUDA_MIG", "1", 1);
          auto session = meeting.member();
          auto same = gpu::Region::try_import(session, std::string("w"));
          ACTOR_MUST(same);
          return 0;
        }).wait() == 0);
  CHECK(Child::run([&] {
          ::setenv("FAKECUDA_MIG", "1", 1);
          ::setenv("CUDA_VISIBLE_DEVICES", "MIG-fa4ec0da-0000-4000-8000-000000000200", 1);
          auto session = meeting.member();
          auto other = gpu::Region::try_import(session, std::string("w"));
          ACTOR_CHECK(status_of(other) == Status::different_mig_instance);
          return 0;
        }).wait() == 0);
  producer.kill();
  CHECK(producer.wait() == 128 + SIGKILL);
}

TEST_CASE("a ticket takes GPU memory to another user") {
  if (!harness::can_change_uid()) {
    harness::skip("a ticket takes GPU memory to another user: this user cannot become another");
    return;
  }
  // The device's nodes are the producer's: the broker, another user, gets them from it.
  const harness::TempDir nodes;
  REQUIRE(::chmod(nodes.path().c_str(), 0777) == 0);
  for (const std::string name : {"fake-nvidia0", "fake-nvidia1"}) {
    std::ofstream(nodes.file(name)).flush();
    REQUIRE(::chmod(nodes.file(name).c_str(), 0600) == 0);
    REQUIRE(::chown(nodes.file(name).c_str(), 1001, 1001) == 0);
  }
  // The tree may lie where other users may not look.
  const std::string driver = nodes.file("libcuda.so.1");
  REQUIRE(std::filesystem::copy_file(SHMB_TEST_FAKECUDA, driver));
  harness::BrokerOptions options;
  options.system = true;
  options.seam = "gpu=" + nodes.path();
  const harness::BrokerFixture broker(options);
  const Note note;
  const Gate published;
  auto producer = Child::run_as(1001, 1001, [&] {
    ::setenv("SHMB_LIBCUDA", driver.c_str(), 1);
    ::setenv("FAKECUDA_NODES", nodes.path().c_str(), 1);
    ACTOR_CHECK(shmb::fault::configure("gpu=" + nodes.path()));
    auto session = connect(broker.socket());
    Device device;
    auto region = gpu::Region::allocate(session, 2 * kMiB);
    ACTOR_CHECK(device.fill(region.pointer(), 2 * kMiB, 0x51) == 0);
    ACTOR_MUST(region.try_publish());
    auto ticket = region.try_ticket();
    ACTOR_MUST(ticket);
    note.tell(*ticket);
    published.open();
    ::pause();
    return 0;
  });
  const bool told = published.wait();
  CHECK(told);
  if (told) {
    const auto ticket = note.hear<shmbroker::Ticket>();
    auto consumer = Child::run_as(1002, 1002, [&] {
      ::setenv("SHMB_LIBCUDA", driver.c_str(), 1);
      auto session = connect(broker.socket());
      Device device;
      auto region = gpu::Region::try_import(session, ticket);
      ACTOR_MUST(region);
      ACTOR_CHECK(device.all(region->pointer(), 2 * kMiB) == 0x51);
      ACTOR_CHECK(status_of(gpu::Region::try_import(session, ticket)) == Status::not_found);  // it was for one use
      return 0;
    });
    CHECK(consumer.wait() == 0);
  }
  producer.kill();
  CHECK(producer.wait() == 128 + SIGKILL);
}

namespace {

// The end of a forked process, as Child::wait gives it, where Child cannot be used: whose parent is in another PID
// namespace has none that it knows.
int end_of_fork(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(body());
  int status = -1;
  if (pid < 0 || ::waitpid(pid, &status, 0) != pid) return -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Why this machine makes no PID namespace with a /proc of its own. Empty: `body` ran as its first process, and ended
// with `status`.
std::string in_pid_namespace(const std::function<int()>& body, int& status) {
  const Note why;
  constexpr int kRefused = 77;
  auto outer = Child::run([&] {
    const auto refused = [&](int step) {
      why.tell(std::pair{step, errno});
      return kRefused;
    };
    if (::unshare(CLONE_NEWPID | CLONE_NEWNS) != 0 &&
        (errno != EPERM || ::unshare(CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS) != 0))
      return refused(1);
    return end_of_fork([&] {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
          ::mount("proc", "/proc", "proc", 0, nullptr) != 0)
        return refused(2);
      return body();
    });
  });
  status = outer.wait();
  if (status != kRefused) return {};
  const auto [step, code] = why.hear<std::pair<int, int>>();
  return std::string(step == 1 ? "unshare" : "mount of /proc") + ": " + std::strerror(code);
}

}  // namespace

namespace {

// From here on, also in children: neither kcmp nor fcntl(F_DUPFD_QUERY), as in an ordinary container on an older
// kernel.
bool forbid_comparing() {
  constexpr unsigned kRefused = SECCOMP_RET_ERRNO | EPERM;
  const sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_kcmp, 3, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fcntl, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[1])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, F_DUPFD_QUERY, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, kRefused),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(filter)), const_cast<sock_filter*>(filter)};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0 &&
         ::fcntl(0, F_DUPFD_QUERY, 0) == -1 && errno == EPERM;
}

}  // namespace

TEST_CASE("memory is published where the broker may call neither kcmp nor F_DUPFD_QUERY") {
  CHECK(Child::run([] {
          ACTOR_CHECK(forbid_comparing());
          const Meeting meeting;
          auto session = meeting.member();
          Device device;
          auto region = gpu::Region::allocate(session, 4 * kMiB);
          ACTOR_CHECK(device.fill(region.pointer(), 4 * kMiB, 0x37) == 0);
          ACTOR_MUST(region.try_publish({.name = "w"}));
          return read_w(meeting, 0x37);
        }).wait() == 0);
}

TEST_CASE("memory goes from one PID namespace to another, both ways, and outlives a maker that was killed there") {
  const Meeting meeting;
  const Gate published;
  auto producer = Child::run([&] { return publish_w(meeting, 0x61, published); });
  REQUIRE(published.wait());
  int status = -1;
  const std::string lack = in_pid_namespace(
      [&] {
        ACTOR_CHECK(::getpid() == 1);
        ACTOR_CHECK(end_of_fork([&] { return read_w(meeting, 0x61); }) == 0);
        const int made = end_of_fork([&] {
          auto session = meeting.member();
          Device device;
          auto region = gpu::Region::allocate(session, 2 * kMiB);
          ACTOR_CHECK(device.fill(region.pointer(), 2 * kMiB, 0x62) == 0);
          ACTOR_MUST(region.try_publish({.name = "inner"}));
          (void)::raise(SIGKILL);
          return 1;
        });
        ACTOR_CHECK(made == 128 + SIGKILL);
        return 0;
      },
      status);
  if (!lack.empty()) {
    harness::skip("memory goes from one PID namespace to another: " + lack);
  } else {
    CHECK(status == 0);
    CHECK(Child::run([&] {
            auto session = meeting.member();
            Device device;
            auto region = gpu::Region::try_import(session, std::string("inner"));
            ACTOR_MUST(region);
            ACTOR_CHECK(device.all(region->pointer(), 2 * kMiB) == 0x62);
            return 0;
          }).wait() == 0);
  }
  producer.kill();
  CHECK(producer.wait() == 128 + SIGKILL);
}

}  // namespace cuda_tests
