// SPDX-License-Identifier: Apache-2.0
// `shmbroker run` around a tree that works on regions, with daemons that double-forked out of it: whichever of its own
// processes is killed, all of the tree ends and every region of the group is freed.
#include <signal.h>
#include <unistd.h>

#include "tests/e2e/machine.hpp"
#include "tests/e2e/programs.hpp"
#include "tests/e2e/support.hpp"
#include "tests/harness/raw_client.hpp"

using namespace e2e;

namespace {

std::uint64_t regions_of(World& world) {
  harness::RawClient admin = harness::RawClient::connect(world.broker().admin());
  return admin.hello().ok() ? admin.status().fixed<shmbw_status_reply>().regions : 0;
}

// A job of three processes with 2, 3 and 1 regions; the latter two are daemons of a session of their own.
class Job {
 public:
  explicit Job(World& world)
      : mark_(std::to_string(2 * MiB + 4096 + static_cast<std::size_t>(::getpid()))),
        run_(program({tool(), "run", "--name", "job", "--", "/bin/sh", "-c", script()},
                     {{"SHMBROKER_SOCKET", world.socket()}, {"PEER", c_peer()}, {"MARK", mark_}})) {
    REQUIRE(eventually([&] { return regions_of(world) == 6; }));
    REQUIRE(workers().size() == 3);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job() {  // of a failed case
    for (const pid_t pid : workers()) ::kill(pid, SIGKILL);
  }
  Child& run() { return run_; }
  std::vector<pid_t> workers() const { return processes_with(mark_); }
  // Forked from `run` without exec, beside the command.
  pid_t supervisor() const {
    for (const pid_t pid : processes_with("run"))
      if (parent_of(pid) == run_.pid() && contents("/proc/" + std::to_string(pid) + "/cmdline") ==
                                              contents("/proc/" + std::to_string(run_.pid()) + "/cmdline"))
        return pid;
    return -1;
  }
  bool gone() const {
    return eventually([this] { return workers().empty(); });
  }

 private:
  static std::string script() {
    return "\"$PEER\" hold 2 $MARK >/dev/null & "
           "(setsid sh -c '\"$PEER\" hold 3 $MARK >/dev/null & \"$PEER\" hold 1 $MARK >/dev/null & wait' &) ; wait";
  }
  std::string mark_;
  Child run_;
};

}  // namespace

TEST_CASE("SIGKILL of run: daemons and all regions of its group are gone") {
  for (const std::string& engine : harness::engines()) {
    World world({.engine = engine});
    Job job(world);
    job.run().kill();
    CHECK(job.run().wait() == 128 + SIGKILL);
    CHECK(job.gone());
    CHECK(world.broker().books().empty());
  }
}

TEST_CASE("SIGKILL of the supervisor: run ends the tree and says so by its status") {
  for (const std::string& engine : harness::engines()) {
    World world({.engine = engine});
    Job job(world);
    const pid_t supervisor = job.supervisor();
    REQUIRE(supervisor > 0);
    ::kill(supervisor, SIGKILL);
    CHECK(job.run().wait() == 125);
    CHECK(job.gone());
    CHECK(world.broker().books().empty());
  }
}

TEST_CASE("SIGTERM of run ends the tree in order; the broker's log names what each of the dead left") {
  for (const std::string& engine : harness::engines()) {
    World world({.engine = engine});
    Job job(world);
    job.run().kill(SIGTERM);
    CHECK(job.run().wait() == 128 + SIGTERM);
    CHECK(job.gone());
    CHECK(world.broker().books().empty());
    // The memory is free at once; a report waits a little for how its process died.
    for (const std::string regions : {"2 regions", "3 regions", "1 region,"})
      CHECK_MESSAGE(eventually([&] { return world.broker().log().find(regions) != std::string::npos; }), regions);
  }
}

TEST_CASE(
    "SIGKILL of every process of the tree but the supervisors leaves nothing, and run reports the command's end") {
  for (const std::string& engine : harness::engines()) {
    World world({.engine = engine});
    Job job(world);
    for (const pid_t pid : job.workers()) ::kill(pid, SIGKILL);
    CHECK(job.run().wait() == 0);  // the shell's `wait` says nothing of how its children died
    CHECK(job.gone());
    CHECK(world.broker().books().empty());
  }
}
