// SPDX-License-Identifier: Apache-2.0
// The common part of all verbs: the common options, printing and failing. A failure is one sentence on stderr, the
// broker's own if it sent one.
#pragma once

#include <cstdint>
#include <ctime>
#include <functional>
#include <string>

#include "base/result.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace shmb::tools {

struct Common {
  std::string socket;        // empty: searched
  std::int64_t timeout = 0;  // for each reply; 0: the library's default
  bool json = false;
  bool exact = false;  // bytes instead of "64.0 MiB"
};

struct Command {
  CLI::App* app = nullptr;
  std::function<int()> run;
};

// Adds --socket and --timeout; --json and --bytes where the verb has them.
void add_common(CLI::App& app, Common& common, bool json, bool exact);
// Options whose text is a size or a duration.
CLI::Option* add_size(CLI::App& app, const std::string& name, std::uint64_t& size, const std::string& help);
void add_duration(CLI::App& app, const std::string& name, std::int64_t& duration, const std::string& help);

Command add_list(CLI::App& app);
Command add_inspect(CLI::App& app);
Command add_status(CLI::App& app);
Command add_put(CLI::App& app);
Command add_cat(CLI::App& app);
Command add_release(CLI::App& app);
Command add_limit(CLI::App& app);
Command add_metrics(CLI::App& app);
Command add_events(CLI::App& app);
Command add_watch(CLI::App& app);
Command add_run(CLI::App& app);
Command add_leaks(CLI::App& app);
Command add_gc(CLI::App& app);
Command add_map(CLI::App& app);
Command add_doctor(CLI::App& app);

bool is_terminal(int fd);
bool colour(int fd);  // a terminal, and neither NO_COLOR nor TERM=dumb
// The form of tables on that descriptor.
struct Look {
  bool colour = false;
  std::size_t columns = 0;  // of the terminal; 0: no terminal, or unknown width, and lines are not cut
};
Look look_of(int fd);
// "shmbroker: SENTENCE" on stderr. Returns the exit code.
int fail(const Error& error);
std::string complaint(const std::string& sentence);  // that line, with its end
void complain(const std::string& sentence);
// To stdout, completely. False (with a sentence on stderr): the reader is gone or the disk full.
bool print(const std::string& text);
// Written together with the next text: a screen is cleared only when its replacement is known.
void print_with_next(std::string text);

std::string size_text(const Common& common, std::uint64_t bytes);
std::string user_text(std::uint32_t uid);            // "mara", or the number when unknown
std::string age_text(std::int64_t boottime);         // since then: "3h12m"
std::time_t wall_seconds(std::int64_t boottime);     // CLOCK_BOOTTIME as seconds since 1970
std::string local_time_text(std::int64_t boottime);  // "2026-01-31 12:00:00", in the time zone of the caller
std::string default_group();                         // "shell-<uid>"
bool in_a_group();  // SHMBROKER_GROUP is set, as in `run`: bare names are in that group
std::string count_text(std::uint64_t number, const char* noun, const char* plural = "s");  // "1 region", "2 regions"

}  // namespace shmb::tools
