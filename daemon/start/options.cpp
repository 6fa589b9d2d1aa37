// SPDX-License-Identifier: Apache-2.0
// See options.hpp.
#include "daemon/start/options.hpp"

#include <getopt.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <optional>

#include "base/result.hpp"
#include "base/sys_file.hpp"
#include "base/text.hpp"
#include "daemon/start/directory.hpp"

namespace shmb::daemon {
namespace {

enum Long {
  config_file = 256,
  check,
  engine,
  directory,
  private_mode,
  system_mode,
  user,
  ready_fd,
  idle_exit,
  keep,
  log_level,
  version,
  help,
  seam
};

const option kOptions[] = {
    {"config", required_argument, nullptr, config_file},
    {"check", no_argument, nullptr, check},
    {"engine", required_argument, nullptr, engine},
    {"directory", required_argument, nullptr, directory},
    {"private", no_argument, nullptr, private_mode},
    {"system", no_argument, nullptr, system_mode},
    {"user", required_argument, nullptr, user},
    {"ready-fd", required_argument, nullptr, ready_fd},
    {"idle-exit", required_argument, nullptr, idle_exit},
    {"keep", no_argument, nullptr, keep},
    {"log-level", required_argument, nullptr, log_level},
    {"version", no_argument, nullptr, version},
    {"help", no_argument, nullptr, help},
#ifdef SHMB_TEST_SEAM
    {"seam", required_argument, nullptr, seam},
#endif
    {},
};

std::unexpected<Error> usage(std::string sentence) {
  return std::unexpected(Error{Status::invalid, EINVAL, {}, std::move(sentence) + " (see shmbrokerd --help)"});
}

Result<void> take(Given& given, Options& options, int code, const char* value) {
  switch (code) {
    case config_file:
      given.file = value;
      return {};
    case check:
      options.action = Options::Action::check;
      return {};
    case engine:
      given.engine = parse_engine(value);
      if (!given.engine) return usage("--engine " + quoted(value) + " is none of auto, io_uring, epoll");
      return {};
    case directory:
      given.directory = value;
      return {};
    case private_mode:
    case system_mode: {
      Mode mode = code == system_mode ? Mode::system : Mode::private_;
      if (given.mode && *given.mode != mode) return usage("--private and --system exclude each other");
      given.mode = mode;
      return {};
    }
    case user:
      if (*value == '\0') return usage("--user expects a name or number");
      given.user = value;
      return {};
    case ready_fd: {
      std::string_view text(value);
      auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), options.ready_fd);
      if (failure != std::errc{} || end != text.data() + text.size() || options.ready_fd < 0)
        return usage("--ready-fd " + quoted(text) + " is not a descriptor number");
      return {};
    }
    case idle_exit: {
      auto duration = parse_duration(value);
      if (!duration) return usage("--idle-exit: " + duration.error().sentence);
      if (*duration == 0) return usage("--idle-exit expects more than 0");
      given.idle_exit = *duration;
      return {};
    }
    case keep:
      given.keep = true;
      return {};
    case log_level:
      given.log_priority = parse_log_level(value);
      if (!given.log_priority)
        return usage("--log-level " + quoted(value) + " is none of error, warning, notice, info, debug");
      return {};
    case version:
      options.action = Options::Action::version;
      return {};
    case help:
      options.action = Options::Action::help;
      return {};
    case seam:
      options.seam = value;
      return {};
    default:
      return usage("");
  }
}

// $XDG_CONFIG_HOME/shmbroker.conf, by default ~/.config/shmbroker.conf. Empty: the environment names no place.
std::string own_file() {
  const auto folder = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value != nullptr && value[0] == '/' ? value : "";
  };
  if (const std::string config = folder("XDG_CONFIG_HOME"); !config.empty()) return config + "/shmbroker.conf";
  if (const std::string home = folder("HOME"); !home.empty()) return home + "/.config/shmbroker.conf";
  return {};
}

// Refusals name the file to clients, which do not know the broker's folder.
std::string whole_path(const std::string& file) {
  char folder[PATH_MAX];
  if (file.starts_with('/') || ::getcwd(folder, sizeof folder) == nullptr) return file;
  return folder + ("/" + file);
}

// The file that is read where none is named. Empty: the environment names no place.
std::string usual_file(Mode mode) { return mode == Mode::system ? "/etc/shmbroker.conf" : own_file(); }

// sudo may leave another user's environment in place. Then that user's file is not read, because the broker would
// follow another user's wishes with its own rights.
Result<Config> read_usual_file(const std::string& file, std::vector<std::string>& notes) {
  Config config;
  config.file = file;
  auto facts = file.empty() ? sys_error(ENOENT) : sys::path_facts(file.c_str(), true);
  if (!facts) return config;
  if (facts->uid != ::geteuid() && facts->uid != 0) {
    notes.push_back("configuration file " + quoted(file) + " belongs to uid " + std::to_string(facts->uid) +
                    ", not to " + std::to_string(::geteuid()) + ": not read");
    return config;
  }
  SHMB_TRY(loaded, load_config(file, config));
  notes.push_back("configuration read from " + file);
  return std::move(loaded);
}

}  // namespace

Result<Options> parse_options(int argc, char** argv) {
  Options options;
  Given& given = options.given;
  optind = 0;  // glibc: restart, also after an earlier parse in a test
  opterr = 0;
  for (int code; (code = ::getopt_long(argc, argv, ":", kOptions, nullptr)) != -1;) {
    const char* word = optind > 0 && optind <= argc ? argv[optind - 1] : "";
    if (code == '?') return usage("unknown option " + quoted(word));
    if (code == ':') return usage("option " + quoted(word) + " needs a value");
    SHMB_TRY_VOID(take(given, options, code, optarg));
  }
  if (optind < argc) return usage("unexpected argument " + quoted(argv[optind]));
  if (options.action == Options::Action::help || options.action == Options::Action::version) return options;
  SHMB_TRY(settings, read_settings(given, options.notes));
  options.config = std::move(settings);
  Config& config = options.config;
  config.directory = given.directory ? *given.directory : default_directory(config.mode);
  while (config.directory.size() > 1 && config.directory.back() == '/') config.directory.pop_back();
  return options;
}

Result<Config> read_settings(const Given& given, std::vector<std::string>& notes) {
  Config named;
  if (given.file) named.file = whole_path(*given.file);
  SHMB_TRY(config, given.file ? load_config(*given.file, named)
                              : read_usual_file(usual_file(given.mode.value_or(Mode::private_)), notes));
  complete_limits(config.limits);
  if (given.mode) config.mode = *given.mode;
  if (given.engine) config.engine = *given.engine;
  if (given.idle_exit) config.idle_exit = *given.idle_exit;
  if (given.log_priority) config.log_priority = *given.log_priority;
  if (given.user) config.user = *given.user;
  if (config.keep && !given.keep && config.mode == Mode::private_) {
    config.keep = false;
    notes.push_back("'keep' in " + config.file +
                    " is for a system broker: a job that a private one was started in would end it with its keepers. A "
                    "private broker that you start by hand takes --keep");
  }
  config.keep = config.keep || given.keep;
  return std::move(config);
}

Result<Config> read_settings_again(const Options& options, std::vector<std::string>& notes) {
  const std::string& file = options.config.file;
  // A pipe would make the broker wait for its writer, and was read at the start.
  if (auto facts = sys::path_facts(file.c_str(), true); facts && !facts->is_regular)
    return error(Status::invalid, "configuration file " + quoted(file) + " is no regular file");
  return read_settings(options.given, notes);
}

const char* help_text() {
  return "Usage: shmbrokerd [OPTION]...\n"
         "Owns the shared memory of this host (--system) or of one user (--private, the default).\n"
         "\n"
         "  --config FILE        read FILE (TOML) and no other; see shmbroker.conf(5)\n"
         "  --check              check the configuration and exit\n"
         "  --engine NAME        auto (default), io_uring or epoll\n"
         "  --directory DIR      where socket, admin and broker.lock are\n"
         "  --private, --system  whose broker this is\n"
         "  --user NAME|UID      the account a system broker runs as (default: shmbroker)\n"
         "  --ready-fd N         write one newline to descriptor N when clients can connect\n"
         "  --idle-exit TIME     a private broker ends when unused that long (default 30s; forever)\n"
         "  --keep               two keepers start the next broker when this one dies\n"
         "  --log-level LEVEL    error, warning, notice, info (default) or debug\n"
         "  --version, --help\n";
}

}  // namespace shmb::daemon
