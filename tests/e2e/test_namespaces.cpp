// SPDX-License-Identifier: Apache-2.0
// Containers and hardened hosts: other PID namespaces, hidden or absent /proc, system calls that a profile forbids. On
// whichever side something is missing, the path works or is refused with a sentence, and the dead leave nothing.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <vector>

#include "tests/e2e/machine.hpp"
#include "tests/e2e/support.hpp"
#include "tests/harness/sanitizer.hpp"

using namespace e2e;

namespace {

struct Place {
  char socket[108];
};

// A client that is made before its broker and waits for it: it stays outside of what its parent then enters.
class Outsider {
 public:
  explicit Outsider(unsigned uid = 0)
      : child_(uid == 0 ? actor([this] { live(); }) : actor_as(uid, [this] { live(); })) {}
  void go(const std::string& socket) {
    std::strncpy(place_->socket, socket.c_str(), sizeof place_->socket - 1);
    go_.open();
    NEED(held_.wait());
  }
  RegionId region() const { return shared_->id; }
  void kill() const { ::kill(child_.pid(), SIGKILL); }  // no pidfd: they may be forbidden

 private:
  struct Facts {
    RegionId id;
  };
  void live() {
    NEED(go_.wait());
    const Session session = connect(place_->socket);
    Region region = session.create(2 * MiB, {.many_writers = true}), other = session.create(4096);
    fill(region.bytes(), 1);
    shared_->id = region.id();
    held_.open();
    ::pause();
  }
  Shared<Place> place_;
  Shared<Facts> shared_;
  Gate go_, held_;
  Child child_;
};

void exchange(World& world) {
  const Session writer = world.connect(), reader = world.connect();
  Region region = writer.create(3 * MiB, {.name = "weights"});
  fill(region.bytes(), 2);
  NEED(holds(reader.attach(region.ticket()).bytes(), 2));
  const auto closed = std::move(region).publish();
  NEED(holds(closed.bytes(), 2));
}

// The holder is killed; the broker has to notice by whatever means it has left.
void die_and_leave_nothing(World& world, Outsider& holder) {
  holder.kill();
  const std::string left = world.broker().books();
  if (!left.empty()) failed(__FILE__, __LINE__, left + "\n" + world.broker().log());
  const int status = world.broker().stop();
  // Without /proc the sanitizer of leaks fails by itself, and reads no option that would turn it off.
  if (!harness::kAddressSanitizer || ::access("/proc/self", F_OK) == 0) NEED(status == 0);
}

// In every world, in a process that may enter namespaces for good. The body ends the broker itself.
void isolated(const std::function<void(const BrokerOptions&)>& body) {
  for (const BrokerOptions& options : harness::engines_and_kernels()) {
    const std::string name = harness::name_of(options);
    CAPTURE(name);
    Child inside = actor([&] { body(options); });
    REQUIRE(inside.wait() == 0);
  }
}

bool can_make_pid_namespaces() {
  return Child::run([] { return ::unshare(CLONE_NEWPID) == 0 ? 0 : 1; }).wait() == 0;
}

[[noreturn]] void live_as_process_1(World& world, const Gate& held) {
  try {
    NEED(::getpid() == 1);
    NEED(enter_mount_namespace());
    NEED(::mount("proc", "/proc", "proc", 0, nullptr) == 0);
    exchange(world);
    const Session session = world.connect();
    const Region region = session.create(2 * MiB);
    NEED(session.stat(region.id()).creator_pid > 1);  // the broker's view of it
    held.open();
    for (;;) ::pause();
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "process 1: %s\n", failure.what());
  }
  ::_exit(1);
}

// `calls` fail with `code` in this process and its children.
void forbid(const std::vector<unsigned>& calls, unsigned code) {
  std::vector<sock_filter> filter = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const unsigned call : calls) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | code));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program{static_cast<unsigned short>(filter.size()), filter.data()};
  NEED(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  NEED(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

}  // namespace

TEST_CASE("a broker in another PID namespace serves clients whose pid it cannot see, and notices their death") {
  if (!can_make_pid_namespaces()) SKIP_CASE("PID namespaces are not allowed here");
  isolated([](const BrokerOptions& options) {
    Outsider outside;
    NEED(::unshare(CLONE_NEWPID) == 0);
    World world(options);  // its broker is process 1 of the new namespace
    outside.go(world.socket());
    {
      exchange(world);
      const Session session = world.connect();
      NEED(session.stat(outside.region()).creator_pid == 0);
      NEED(holds(session.attach_writable(outside.region()).bytes(), 1));
    }
    die_and_leave_nothing(world, outside);
  });
}

TEST_CASE("a client in a PID namespace of its own, with its own /proc, uses the broker outside") {
  if (!can_make_pid_namespaces() || !can_mount()) SKIP_CASE("PID or mount namespaces are not allowed here");
  in_every_world([](World& world) {
    Gate held;
    Child outside = actor([&] {
      NEED(::unshare(CLONE_NEWPID) == 0);
      // Not a Child: those recognise their parent by a number, which is 0 in there.
      const pid_t inside = ::fork();
      if (inside == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        live_as_process_1(world, held);
      }
      ::waitpid(inside, nullptr, 0);
    });
    REQUIRE(held.wait());
    outside.kill();
    outside.wait();
    CHECK(world.broker().books().empty());
  });
}

TEST_CASE("a broker that may not look into /proc of others (hidepid) notices the death of its clients") {
  if (!can_mount() || !harness::can_change_uid()) SKIP_CASE("mounting or changing uids is not allowed here");
  isolated([](BrokerOptions options) {
    Outsider a(60001), b(60002);
    NEED(enter_mount_namespace());
    NEED(::mount("proc", "/proc", "proc", 0, "hidepid=2") == 0);
    options.system = true;
    World world(options);
    a.go(world.socket());
    b.go(world.socket());
    exchange(world);
    b.kill();
    die_and_leave_nothing(world, a);
  });
}

TEST_CASE("a client without /proc does everything") {
  if (!can_mount()) SKIP_CASE("mounting is not allowed here");
  in_every_world([](World& world) {
    Child client = actor([&] {
      NEED(enter_mount_namespace());
      NEED(::umount2("/proc", MNT_DETACH) == 0);
      NEED(::access("/proc/self", F_OK) != 0);
      exchange(world);
      const Session session = world.connect();
      Region region = session.create(2 * MiB);
      Child forked = actor([&] {
        NEED_STATUS(session.try_create(4096), ok);
        NEED_STATUS(session.try_attach(region.ticket()), ok);
      });
      NEED(forked.wait() == 0);
    });
    CHECK(client.wait() == 0);
  });
}

TEST_CASE("a broker without /proc shares for writing, refuses to share read-only with a sentence, and notices deaths") {
  if (!can_mount()) SKIP_CASE("mounting is not allowed here");
  isolated([](const BrokerOptions& options) {
    Outsider outside;
    NEED(enter_mount_namespace());
    NEED(::umount2("/proc", MNT_DETACH) == 0);
    World world(options);
    outside.go(world.socket());
    {
      const Session session = world.connect();
      NEED(holds(session.attach_writable(outside.region()).bytes(), 1));
      const auto refused = session.try_attach(outside.region());
      NEED_STATUS(refused, unsupported);
      if (sentence_of(refused).find("/proc") == std::string::npos) failed(__FILE__, __LINE__, sentence_of(refused));
      NEED_STATUS(session.try_ping(), ok);
    }
    die_and_leave_nothing(world, outside);
  });
}

TEST_CASE("under a profile that forbids io_uring and pidfds everything works, and the log says what is missing") {
  for (const unsigned code : {EPERM, ENOSYS}) {
    for (const char* kernel : {"", "5.15"}) {
      CAPTURE(code);
      CAPTURE(kernel);
      Child inside = actor([&] {
        Outsider outside;
        forbid({SYS_io_uring_setup, SYS_pidfd_open}, code);
        NEED(::syscall(SYS_pidfd_open, ::getpid(), 0) < 0);
        World world({.engine = "auto", .kernel = kernel});
        NEED(world.broker().log().find("epoll") != std::string::npos);
        outside.go(world.socket());
        exchange(world);
        die_and_leave_nothing(world, outside);
      });
      REQUIRE(inside.wait() == 0);
    }
  }
}
