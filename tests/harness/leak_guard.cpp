// SPDX-License-Identifier: Apache-2.0
// The guard is a doctest listener. doctest has counted a case before it tells listeners of its end, so a leak is
// recorded here and turned into the exit status by main.
#include "tests/harness/leak_guard.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <thread>

#include "tests/harness/skip.hpp"
#include "tests/harness/snapshot.hpp"

namespace harness {

namespace {

std::string running_case;
int leaks = 0;
bool any_case = false;
std::map<int, std::function<std::string()>> checks;
int next_check = 1;

void say(const char* kind, const std::string& text) {
  std::fflush(stderr);
  std::printf("%s: %s: %s\n", kind, running_case.c_str(), text.c_str());
  std::fflush(stdout);
}

std::vector<std::string> what_is_wrong(const Snapshot& before) {
  std::vector<std::string> wrong = differences(before, take_snapshot());
  for (const auto& [id, check] : checks)
    if (std::string text = check(); !text.empty()) wrong.push_back(text);
  return wrong;
}

constexpr int kLookEveryMs = 20;

struct LeakGuard : doctest::IReporter {
  explicit LeakGuard(const doctest::ContextOptions&) {}
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_start(const doctest::TestCaseData& test) override {
    running_case = test.m_name;
    any_case = true;
    before_ = take_snapshot();
  }
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {
    std::vector<std::string> wrong = what_is_wrong(before_);
    for (int waited = 0; waited < patience_ms && !wrong.empty(); waited += kLookEveryMs) {
      std::this_thread::sleep_for(std::chrono::milliseconds(kLookEveryMs));
      wrong = what_is_wrong(before_);
    }
    for (const std::string& what : wrong) report_leak(what);
    running_case.clear();
  }
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}

 private:
  Snapshot before_;
};

REGISTER_LISTENER("leak_guard", 1, LeakGuard);

}  // namespace

int add_books_check(std::function<std::string()> check) {
  checks[next_check] = std::move(check);
  return next_check++;
}

void remove_books_check(int id) { checks.erase(id); }

void report_leak(const std::string& what) {
  ++leaks;
  say("LEAK", what);
}

const std::string& current_case() { return running_case; }

int leaks_found() { return leaks; }

bool any_case_ran() { return any_case; }

void skip(const std::string& reason) { say("SKIPPED", reason); }

}  // namespace harness
