// SPDX-License-Identifier: Apache-2.0
// See tool.hpp.
#include "tools/tool.hpp"

#include <pwd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <ctime>
#include <map>
#include <span>
#include <utility>

#include "base/sys_process.hpp"
#include "base/text.hpp"
#include "client/face/shmbroker.h"
#include "client/session/words.hpp"
#include "tools/exit_code.hpp"
#include "tools/printable.hpp"

namespace shmb::tools {
namespace {

// Parses an option's text with one of base's parsers, and passes its sentence to CLI11.
template <class T>
CLI::Option* add_parsed(CLI::App& app, const std::string& name, T& value, const std::string& help,
                        const std::string& kind, Result<T> (*parse)(std::string_view)) {
  return app
      .add_option_function<std::string>(
          name,
          [&value, parse, name](const std::string& text) {
            auto parsed = parse(text);
            if (!parsed) throw CLI::ValidationError(name, parsed.error().sentence);
            value = *parsed;
          },
          help)
      ->type_name(kind);
}

}  // namespace

void add_common(CLI::App& app, Common& common, bool json, bool exact) {
  app.add_option("--socket", common.socket, "The broker's socket, instead of looking for one")->type_name("PATH");
  add_duration(app, "--timeout", common.timeout, "How long to wait for the broker (default 5s)");
  if (json) app.add_flag("--json", common.json, "For programs; the first key names the schema");
  if (exact) app.add_flag("-b,--bytes", common.exact, "Sizes in bytes");
}

CLI::Option* add_size(CLI::App& app, const std::string& name, std::uint64_t& size, const std::string& help) {
  return add_parsed(app, name, size, help, "SIZE", parse_size);
}

void add_duration(CLI::App& app, const std::string& name, std::int64_t& duration, const std::string& help) {
  add_parsed(app, name, duration, help, "DURATION", parse_duration);
}

bool is_terminal(int fd) { return ::isatty(fd) == 1; }

bool colour(int fd) {
  const char* no_colour = std::getenv("NO_COLOR");  // no-color.org: set and not empty
  const char* terminal = std::getenv("TERM");
  if (no_colour != nullptr && *no_colour != '\0') return false;
  return is_terminal(fd) && terminal != nullptr && std::string_view(terminal) != "dumb";
}

Look look_of(int fd) {
  Look found{colour(fd), 0};
  winsize size{};
  if (is_terminal(fd) && ::ioctl(fd, TIOCGWINSZ, &size) == 0) found.columns = size.ws_col;
  return found;
}

int fail(const Error& error) {
  complain(error.sentence.empty() ? status_text(error.status) : error.sentence);
  return exit_code(error.status);
}

std::string complaint(const std::string& sentence) {
  return "shmbroker: " + printable(client::in_words_of(client::Face::shell, sentence)) + "\n";
}

void complain(const std::string& sentence) {
  const std::string line = complaint(sentence);
  (void)sys::write_all(STDERR_FILENO, std::as_bytes(std::span(line)));
}

static std::string before_next;  // see print_with_next

void print_with_next(std::string text) { before_next = std::move(text); }

bool print(const std::string& text) {
  const std::string all = std::exchange(before_next, {}) + text;
  auto written = sys::write_all(STDOUT_FILENO, std::as_bytes(std::span(all)));
  if (!written) complain("cannot write to stdout: " + errno_text(written.error().value));
  return written.has_value();
}

std::string size_text(const Common& common, std::uint64_t bytes) {
  return common.exact ? std::to_string(bytes) : format_size(bytes);
}

std::string user_text(std::uint32_t uid) {
  static std::map<std::uint32_t, std::string> known;
  auto [entry, added] = known.try_emplace(uid);
  if (added) {
    const passwd* found = ::getpwuid(uid);
    entry->second = found != nullptr ? found->pw_name : std::to_string(uid);
  }
  return entry->second;
}

std::string age_text(std::int64_t boottime) {
  const std::int64_t age = sys::now_boottime() - boottime;
  constexpr std::int64_t second = 1'000'000'000;
  return age < second ? "0s" : format_duration(age - age % second);
}

std::string local_time_text(std::int64_t boottime) {
  const std::time_t when = wall_seconds(boottime);
  std::tm parts{};
  ::localtime_r(&when, &parts);
  char text[40];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts)};
}

std::time_t wall_seconds(std::int64_t boottime) {
  constexpr std::int64_t second = 1'000'000'000;
  timespec wall{};
  ::clock_gettime(CLOCK_REALTIME, &wall);
  return (wall.tv_sec * second + wall.tv_nsec + (boottime - sys::now_boottime())) / second;
}

std::string default_group() {
  char name[SHMB_MAX_NAME + 1];
  shmb_user_group(name);
  return name;
}

bool in_a_group() {
  const char* variable = std::getenv("SHMBROKER_GROUP");
  return variable != nullptr && *variable != '\0';
}

std::string count_text(std::uint64_t number, const char* noun, const char* plural) {
  return std::to_string(number) + " " + noun + (number == 1 ? "" : plural);
}

}  // namespace shmb::tools
