// SPDX-License-Identifier: Apache-2.0
// Proves on a real GPU the driver facts that GPU regions stand on, without our broker: plain processes, sockets,
// libcuda at run time. Each test is a process group of its own with a time limit, so a hang costs one test. The results
// are lines on stdout and a JSON file that is whole after every test. Exit: 0 all passed, 1 some failed, 77 no GPU.
// With
// --fake those of them that the fake driver can answer run on it: that shows that fake and facts agree, and no more.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/actor.hpp"
#include "tests/gpu/driver.hpp"
#include "tests/gpu/report.hpp"
#include "tests/gpu/tests.hpp"

namespace shmb::facts {

Settings settings;

namespace {

// In the order of what the design needs most, so that a short run answers the most.
constexpr Test kTests[] = {
    {"machine", "what this machine is", 60, machine},
    {"T4", "what the descriptor looks like to a process without the driver", 30, t4_descriptor},
    {"T1", "memory of a killed producer can be imported at once and later", 60, t1_producer_killed},
    {"T3", "what keeps the memory when no other process uses the GPU", 120, t3_device_node},
    {"T2", "producer killed while a consumer's kernel reads; memory returned after the last close", 60,
     t2_killed_under_a_kernel},
    {"T8", "a process without a context can allocate for others", 40, t8_no_context_allocator},
    {"T12", "cycles leave no descriptors, no memory and no card memory behind", 120, t12_cycles},
    {"P1", "import and map against legacy IPC, by size", 90, p1_import},
    {"P2", "create, export, map, by size", 60, p2_create},
    {"T7", "a write through a read-only mapping faults its own process only", 40, t7_read_only},
    {"T5", "another uid imports", 40, t5_other_uid},
    {"T27", "timeline words order streams of two processes; a killed producer's waiter wakes", 60, t27_timeline},
    {"T27e", "the same with interprocess events", 60, t27_event},
    {"T6", "the keeper works after every share is closed", 30, t6_keeper_outlives_share},
    {"P7", "timeline against event against host round trip", 40, p7_latency},
    {"P6", "copy bandwidth through an imported mapping", 40, p6_bandwidth},
    {"T11", "a claimed size other than the real one", 30, t11_size_lie},
    {"T10", "descriptors that are something else", 30, t10_junk_descriptors},
    {"T9", "CUDA_VISIBLE_DEVICES in the importer", 40, t9_visible_devices},
    {"T28", "pinned memfd: copies, read-only registration, seals, holes", 60, t28_pinned_memfd},
    {"P5", "registration of host memory by page size", 60, p5_register},
    {"P8", "what a consumer's context costs", 30, p8_context},
    {"T14", "fork after init", 30, t14_fork},
    {"T18", "whether fresh memory shows old bytes", 40, t18_fresh_memory},
    {"T15", "consumer killed inside a kernel", 60, t15_consumer_killed_in_kernel},
    {"T17", "producer's context dies of an illegal address", 40, t17_producer_fault},
    {"T16", "a full card", 60, t16_out_of_memory},
    {"T13", "many consumers and many regions", 120, t13_many},
};

// Not here: what needs the device's node or another uid's way to the library, what moves gigabytes, and all figures.
constexpr const char* kOnTheFake = "T1,T6,T7,T9,T10,T11,T12,T14,T16,T17,T27";

struct Result {
  const Test* test;
  std::string verdict;
  double seconds = 0;
  std::vector<std::string> reasons;
  std::vector<std::pair<std::string, std::string>> facts;
};

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
      out += code;
    } else {
      out += c;
    }
  }
  return out + "\"";
}

void write_json(const std::string& path, const std::vector<Result>& results) {
  if (path.empty()) return;
  std::ofstream file(path + ".part");
  file << "{\"tests\": [";
  for (std::size_t i = 0; i < results.size(); ++i) {
    const Result& result = results[i];
    file << (i == 0 ? "\n" : ",\n") << "  {\"name\": " << quoted(result.test->name)
         << ", \"question\": " << quoted(result.test->question) << ", \"verdict\": " << quoted(result.verdict)
         << ", \"seconds\": " << result.seconds << ", \"reasons\": [";
    for (std::size_t r = 0; r < result.reasons.size(); ++r) file << (r == 0 ? "" : ", ") << quoted(result.reasons[r]);
    file << "], \"facts\": [";
    for (std::size_t f = 0; f < result.facts.size(); ++f) {
      file << (f == 0 ? "\n" : ",\n") << "    {\"key\": " << quoted(result.facts[f].first)
           << ", \"value\": " << quoted(result.facts[f].second) << "}";
    }
    file << "]}";
  }
  file << "\n]}\n";
  file.close();
  if (std::rename((path + ".part").c_str(), path.c_str()) != 0) std::perror(path.c_str());
}

void take_line(Result& result, const std::string& line) {
  const std::size_t tab = line.find('\t');
  if (line.empty() || tab == std::string::npos) return;
  const std::string value = line.substr(tab + 1);
  if (line[0] == '+') {
    result.facts.emplace_back(line.substr(1, tab - 1), value);
  } else {
    result.reasons.push_back(value);
    if (result.verdict != "fail") result.verdict = line[0] == '-' ? "skip" : "fail";
  }
}

[[noreturn]] void be_the_test(const Test& test, int report) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  signal(SIGPIPE, SIG_IGN);
  if (report != kReportFd) dup2(report, kReportFd);
  if (syscall(SYS_close_range, kReportFd + 1, ~0U, 0U) != 0) {
    for (int fd = kReportFd + 1; fd < 1024; ++fd) close(fd);
  }
  test.body();
  _exit(0);
}

Result run_test(const Test& test) {
  Result result{&test, {}, 0, {}, {}};
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return result;
  const double start = now_ms();
  const pid_t pid = fork();
  if (pid == 0) be_the_test(test, ends[1]);
  close(ends[1]);
  setpgid(pid, pid);
  std::string text;
  int status = -1;
  bool ended = false, late = false;
  for (;;) {
    pollfd ready{ends[0], POLLIN, 0};
    poll(&ready, 1, 50);
    char part[4096];
    const ssize_t got = (ready.revents & (POLLIN | POLLHUP)) != 0 ? read(ends[0], part, sizeof part) : -1;
    if (got > 0) text.append(part, static_cast<std::size_t>(got));
    if (!ended && waitpid(pid, &status, WNOHANG) == pid) {
      ended = true;
      kill(-pid, SIGKILL);  // actors left behind by a failed test
    }
    if (got == 0 && ended) break;
    if (!ended && !late && now_ms() - start > test.limit_s * 1000.0) {
      late = true;
      kill(-pid, SIGKILL);
    }
    if (now_ms() - start > test.limit_s * 1000.0 + 15000) break;  // a process that not even SIGKILL ends
  }
  close(ends[0]);
  result.seconds = (now_ms() - start) / 1000;
  std::size_t from = 0;
  for (std::size_t end = 0; (end = text.find('\n', from)) != std::string::npos; from = end + 1) {
    take_line(result, text.substr(from, end - from));
  }
  if (late) {
    result.verdict = "fail";
    result.reasons.push_back("not done after " + std::to_string(test.limit_s) + " s");
  } else if (result.verdict.empty() && status != 0) {
    result.verdict = "fail";
    result.reasons.push_back("the test process ended with wait status " + std::to_string(status));
  } else if (result.verdict.empty()) {
    result.verdict = "pass";
  }
  return result;
}

// In a process of its own: the runner never loads the driver.
std::string why_not(bool fake) {
  int ends[2];
  if (pipe(ends) != 0) return "pipe";
  const pid_t pid = fork();
  if (pid == 0) {
    std::string problem = load_driver();
    int count = 0;
    if (problem.empty() && driver_is_fake() != fake) {
      problem = fake ? "this is not the fake driver" : "this is the fake driver: say --fake";
    } else if (problem.empty()) {
      const Code code = cu.init(0);
      if (code != kSuccess) {
        problem = "cuInit gives " + code_text(code);
      } else if (cu.device_count(&count) != kSuccess || count == 0) {
        problem = "no device";
      }
    }
    _exit(problem.empty() || write(ends[1], problem.data(), problem.size()) < 0 ? 0 : 1);
  }
  close(ends[1]);
  char text[400] = {};
  const ssize_t got = read(ends[0], text, sizeof text - 1);
  close(ends[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  if (got > 0) return text;
  return status == 0 ? "" : "the driver ended the process with wait status " + std::to_string(status);
}

bool listed(const std::string& list, const char* name) {
  return ("," + list + ",").find("," + std::string(name) + ",") != std::string::npos;
}

void print(const Result& result) {
  std::printf("%s %s (%.1f s): %s\n", result.test->name, result.verdict.c_str(), result.seconds, result.test->question);
  for (const std::string& reason : result.reasons) std::printf("    ! %s\n", reason.c_str());
  for (const auto& [key, value] : result.facts) std::printf("    %s: %s\n", key.c_str(), value.c_str());
  std::fflush(stdout);
}

int usage() {
  std::fputs(
      "usage: gpu-facts [--fake] [--json FILE] [--only T1,T2] [--skip T3] [--quick] [--pin-wait SECONDS] [--budget "
      "SECONDS]\n",
      stderr);
  return 2;
}

int run(int count, char** words) {
  std::string json, only, without;
  double budget_s = 420;
  bool fake = false;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    if (word == "--quick") {
      settings.quick = true;
      continue;
    }
    if (word == "--fake") {
      fake = true;
      settings.wait_ms = 200;
      setenv("FAKECUDA_CARD", ("facts" + std::to_string(getpid())).c_str(), 1);  // of this run alone
      if (only.empty()) only = kOnTheFake;
      continue;
    }
    if (i + 1 == count) return usage();
    const char* value = words[++i];
    if (word == "--json") {
      json = value;
    } else if (word == "--only") {
      only = value;
    } else if (word == "--skip") {
      without = value;
    } else if (word == "--pin-wait") {
      settings.pin_wait_s = std::atoi(value);
    } else if (word == "--budget") {
      budget_s = std::atof(value);
    } else {
      return usage();
    }
  }
  if (const std::string problem = why_not(fake); !problem.empty()) {
    std::printf("no %s to test: %s\n", fake ? "fake driver" : "GPU", problem.c_str());
    return fake ? 1 : 77;  // our own driver can always be had
  }
  if (fake) std::puts("ON THE FAKE DRIVER: nothing below says anything about a GPU or about NVIDIA's driver\n");
  // Kernels compiled and loaded at start: loading one lazily can wait for a stream that waits for a value.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  setenv("CUDA_CACHE_DISABLE", "1", 1);
  const double start = now_ms();
  std::vector<Result> results;
  int node = -1;
  for (const Test& test : kTests) {
    if ((!only.empty() && !listed(only, test.name)) || listed(without, test.name)) continue;
    // An open device node spares each test the GPU's start; only the test about that node goes without.
    const bool bare = test.body == t3_device_node || test.body == machine;
    if (bare && node >= 0) {
      close(node);
      node = -1;
    } else if (!bare && node < 0) {
      node = open(gpu_node().c_str(), O_RDWR | O_CLOEXEC);
    }
    if (now_ms() - start > budget_s * 1000) {
      results.push_back({&test, "skip", 0, {"out of time: " + std::to_string(static_cast<int>(budget_s)) + " s"}, {}});
    } else {
      results.push_back(run_test(test));
    }
    print(results.back());
    write_json(json, results);
  }
  std::printf("\n%-8s %-5s %7s  %s\n", "test", "is", "s", "");
  bool failed = false;
  for (const Result& result : results) {
    std::printf("%-8s %-5s %7.1f  %s\n", result.test->name, result.verdict.c_str(), result.seconds,
                result.reasons.empty() ? "" : result.reasons.front().c_str());
    failed = failed || result.verdict == "fail";
  }
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace shmb::facts

int main(int count, char** words) { return shmb::facts::run(count, words); }
