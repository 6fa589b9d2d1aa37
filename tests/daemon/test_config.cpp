// SPDX-License-Identifier: Apache-2.0
// Every key of the configuration file, every way to get it wrong, and the line that is named.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "daemon/start/config.hpp"
#include "daemon/start/options.hpp"
#include "tests/harness/temp_dir.hpp"

using namespace shmb;
using namespace shmb::daemon;

namespace {

Config good(const std::string& text) {
  auto parsed = parse_config(text, "c.toml", {});
  REQUIRE_MESSAGE(parsed.has_value(), (parsed ? "" : parsed.error().sentence));
  return *parsed;
}

void refused(const std::string& text, const std::string& sentence) {
  CAPTURE(text);
  auto parsed = parse_config(text, "c.toml", {});
  REQUIRE_FALSE(parsed.has_value());
  CHECK(parsed.error().status == Status::invalid);
  CHECK_MESSAGE(parsed.error().sentence.find(sentence) != std::string::npos, parsed.error().sentence);
}

}  // namespace

TEST_CASE("an empty file means the defaults, with half of the host's memory") {
  Config config = good("");
  Config defaults;
  complete_limits(defaults.limits);
  CHECK(config.limits.host_bytes > 0);
  CHECK(config.limits.host_bytes == defaults.limits.host_bytes);
  CHECK(config.limits.uid_bytes == config.limits.host_bytes);
  CHECK(config.limits.group_bytes == config.limits.host_bytes);
  CHECK(config.engine == EngineChoice::automatic);
  CHECK(config.idle_exit == 30'000'000'000);
}

TEST_CASE("a text that the parser of TOML asserts over is refused like any other, and ends no broker") {
  for (const char* text : {"[ = 3", "[limits]\nuid_regions = 3\n[ = 3\n", "[limits.uid.1000]\nbytes = \"\"G4\n[ = 1"})
    refused(text, "c.toml");
}

TEST_CASE("letters beyond ASCII are for comments") {
  refused("engine = \"epoll\"\n[limits.uid.100\xd0\xaa]\n", "c.toml:2: only comments");
  refused("user = 'c#d'\xef\xbb\xbe= 1\n", "c.toml:1: only comments");  // the # is in a string
  refused("user = \"a\\\"#\xc3\xb6\"\n", "c.toml:1: only comments");
  refused("user = \"\"\"\n#\xc3\xb6\n\"\"\"\n", "c.toml:2: only comments");
  CHECK(good("user = \"a\\\"#b\" # \xc3\xb6\n").user == "a\"#b");
  CHECK(good("user = 'a\\' # \xc3\xb6\n").user == "a\\");
  CHECK(good("# gr\xc3\xb6\xc3\x9f"
             "er\nengine = \"epoll\" # \xd0\xaa\n")
            .engine == EngineChoice::epoll);
}

TEST_CASE("every key of the top level is read") {
  Config config = good(R"(
engine = "epoll"
descriptors = 4096
descriptors_reserved = 32
hello_timeout = "500ms"
unread_timeout = "3s"
idle_exit = "forever"
log_level = "debug"
socket_mode = "0660"
gpu_hold = "trust"
keep = true
user = "shm"
)");
  CHECK(config.engine == EngineChoice::epoll);
  CHECK(config.descriptors == 4096);
  CHECK(config.descriptors_reserved == 32);
  CHECK(config.hello_timeout == 500'000'000);
  CHECK(config.unread_timeout == 3'000'000'000);
  CHECK(config.idle_exit == -1);
  CHECK(config.log_priority == 7);
  CHECK(config.keep);
  CHECK(config.socket_mode == 0660);
  CHECK(config.gpu_trust);
  CHECK(config.user == "shm");
  CHECK(good("user = 997").user == "997");
  CHECK(good("engine = \"io_uring\"").engine == EngineChoice::io_uring);
  CHECK(good("engine = \"auto\"").engine == EngineChoice::automatic);
}

TEST_CASE("every limit is read") {
  Config config = good(R"(
[limits]
bytes = "8G"
uid_bytes = "4G"
group_bytes = "2G"
shelf_bytes = 1048576
group_regions = 1
uid_regions = 2
uid_leases = 3
uid_sessions = 4
uid_groups = 5
uid_tickets = 6
uid_names = 7
uid_watches = 8
uid_worlds = 12
uid_references = 13
uid_gpu_descriptors = 12
uid_timelines = 14
gpu_bytes = "80G"
uid_gpu_bytes = "40G"
group_gpu_bytes = "20G"
session_leases = 9
session_watches = 10
session_tickets = 17
target_watches = 16
events_queued = 11
keep_max = "1h"
ticket_default = "1m"
ticket_max = "2m"
shelf_idle = "0s"
[limits.uid.1000]
bytes = "1G"
regions = 21
leases = 22
sessions = 23
groups = 24
tickets = 25
names = 26
watches = 27
gpu_bytes = "10G"
gpu_descriptors = 28
timelines = 29
[limits.group.trainer]
bytes = "512M"
regions = 31
gpu_bytes = "5G"
)");
  const Limits& limits = config.limits;
  CHECK(limits.host_bytes == 8ULL << 30);
  CHECK(limits.uid_bytes == 4ULL << 30);
  CHECK(limits.group_bytes == 2ULL << 30);
  CHECK(limits.shelf_bytes == 1 << 20);
  CHECK(limits.group_regions == 1);
  CHECK(limits.uid_regions == 2);
  CHECK(limits.uid_leases == 3);
  CHECK(limits.uid_sessions == 4);
  CHECK(limits.uid_groups == 5);
  CHECK(limits.uid_tickets == 6);
  CHECK(limits.session_tickets == 17);
  CHECK(limits.uid_names == 7);
  CHECK(limits.uid_watches == 8);
  CHECK(limits.uid_worlds == 12);
  CHECK(limits.uid_references == 13);
  CHECK(limits.uid_gpu_descriptors == 12);
  CHECK(limits.uid_timelines == 14);
  CHECK(limits.gpu_bytes == 80ULL << 30);
  CHECK(limits.uid_gpu_bytes == 40ULL << 30);
  CHECK(limits.group_gpu_bytes == 20ULL << 30);
  CHECK(limits.session_leases == 9);
  CHECK(limits.session_watches == 10);
  CHECK(limits.target_watches == 16);
  CHECK(limits.events_queued == 11);
  CHECK(limits.keep_max == 3'600'000'000'000);
  CHECK(limits.ticket_default == 60'000'000'000);
  CHECK(limits.ticket_max == 120'000'000'000);
  CHECK(limits.shelf_idle == 0);
  REQUIRE(limits.uid.contains(1000));
  const LimitOverride& uid = limits.uid.at(1000);
  CHECK(uid.bytes == 1ULL << 30);
  CHECK(uid.regions == 21);
  CHECK(uid.leases == 22);
  CHECK(uid.sessions == 23);
  CHECK(uid.groups == 24);
  CHECK(uid.tickets == 25);
  CHECK(uid.names == 26);
  CHECK(uid.watches == 27);
  CHECK(uid.gpu_bytes == 10ULL << 30);
  CHECK(uid.gpu_descriptors == 28);
  CHECK(uid.timelines == 29);
  REQUIRE(limits.group.contains("trainer"));
  CHECK(limits.group.at("trainer").bytes == 512ULL << 20);
  CHECK(limits.group.at("trainer").regions == 31);
  CHECK(limits.group.at("trainer").gpu_bytes == 5ULL << 30);
  CHECK_FALSE(limits.group.at("trainer").leases.has_value());
}

TEST_CASE("a share of memory is a share of the host's, and wider limits bound narrower ones that are not given") {
  std::uint64_t whole = good("").limits.host_bytes * 2;
  Config config = good("[limits]\nbytes = \"25%\"");
  CHECK(config.limits.host_bytes >= whole / 4 - 2);
  CHECK(config.limits.host_bytes <= whole / 4 + 2);
  CHECK(config.limits.group_bytes == config.limits.host_bytes);
}

TEST_CASE("an unknown key or a wrong value is refused with file and line") {
  refused("\n\nengin = \"epoll\"", "c.toml:3: unknown key 'engin'");
  refused("[limits]\nbites = 1", "c.toml:2: unknown key 'limits.bites'");
  refused("[limits.uid.1000]\nmemory = 1", "c.toml:2: unknown key 'limits.uid.1000.memory'");
  refused("[limits.group.a]\nsessions = 1", "c.toml:2: unknown key 'limits.group.a.sessions'");
  refused("[other]\nx = 1", "c.toml:1: unknown key 'other'");
  refused("engine = \"kqueue\"", "c.toml:1: 'engine' expects one of \"auto\", \"io_uring\", \"epoll\"");
  refused("engine = 3", "'engine' expects one of");
  refused("log_level = \"loud\"", "'log_level' expects one of \"error\"");
  refused("gpu_hold = \"hope\"", "'gpu_hold' expects one of");
  refused("socket_mode = 0o666", "'socket_mode' expects an octal mode");
  refused("socket_mode = \"0999\"", "'socket_mode' expects an octal mode");
  refused("socket_mode = \"0066\"", "lets the owner in");
  refused("user = \"\"", "'user' expects a user name or number");
  refused("user = -1", "'user' expects a user name or number");
  refused("descriptors = -5", "'descriptors' expects a whole number from 0");
  refused("descriptors = \"many\"", "'descriptors' expects a whole number");
  refused("descriptors = 1.5", "'descriptors' expects a whole number");
  refused("hello_timeout = \"0s\"", "'hello_timeout' expects more than 0");
  refused("hello_timeout = \"forever\"", "'hello_timeout' expects a limited duration");
  refused("hello_timeout = 2", "'hello_timeout' expects a duration like \"10s\" in quotes");
  refused("unread_timeout = \"fast\"", "'unread_timeout' duration 'fast'");
  refused("limits = 5", "'limits' is a table");
  refused("[limits]\nbytes = \"lots\"", "c.toml:2: 'limits.bytes' size 'lots'");
  refused("[limits]\nbytes = 0", "'limits.bytes' expects more than 0 bytes");
  refused("[limits]\nbytes = \"0%\"", "'limits.bytes' expects more than 0 bytes");
  refused("[limits]\nbytes = true", "'limits.bytes' expects a size");
  refused("[limits]\nevents_queued = 0", "'limits.events_queued' expects a whole number from 1");
  refused("[limits]\nkeep_max = \"forever\"", "'limits.keep_max' expects a limited duration");
  refused("[limits]\nkeep_max = \"36501d\"", "'limits.keep_max' expects at most \"36500d\"");
  refused("idle_exit = \"200000d\"", "'idle_exit' duration '200000d' is too long");
  refused("[limits]\nuid = 5", "write [limits.uid.NUMBER]");
  refused("[limits]\ngroup = 5", "write [limits.group.NAME]");
  refused("[limits.uid]\n1000 = 5", "c.toml:2: 'limits.uid.1000' is a table");
  refused("[limits.uid.alice]\nbytes = 1", "'alice' is no uid");
  refused("[limits.uid.99999999999]\nbytes = 1", "is no uid");
  refused("[limits.group.\"a/b\"]\nbytes = 1", "c.toml:1: ");
  refused("[limits.uid.5]\nbytes = \"-1\"", "c.toml:2: 'limits.uid.5.bytes' ");
  refused("a = \n", "c.toml:1: ");
  refused("engine = \"epoll\"\nengine = \"epoll\"", "c.toml:2: ");
  refused(std::string("\xff\xfe = 1"), "c.toml:1: ");
}

TEST_CASE("a configuration file is read like its text, and the error of a file that cannot be read says why") {
  harness::TempDir folder;
  std::ofstream(folder.file("c")) << "engine = \"epoll\"\n";
  CHECK(load_config(folder.file("c"), {})->engine == EngineChoice::epoll);
  auto missing = load_config(folder.file("none"), {});
  REQUIRE_FALSE(missing);
  CHECK(missing.error().sentence.find("No such file or directory") != std::string::npos);
  CHECK(missing.error().system_errno == ENOENT);
  CHECK_FALSE(load_config(folder.path(), {}));
}

TEST_CASE("keys outside of [limits] that differ are named, and limits are not among them") {
  const Config one = *parse_config("engine = \"epoll\"\nuser = \"a\"\n", "one", {});
  CHECK(keys_that_differ(one, one).empty());
  const Config other = *parse_config(
      "engine = \"auto\"\nuser = \"b\"\ngpu_hold = \"trust\"\nlog_level = \"debug\"\nsocket_mode = \"0660\"\n"
      "descriptors = 5\ndescriptors_reserved = 6\nhello_timeout = \"7s\"\nunread_timeout = \"8s\"\nidle_exit = \"9s\"\n"
      "[limits]\nbytes = \"1G\"\n",
      "other", {});
  CHECK(keys_that_differ(one, other) == std::vector<std::string>{"engine", "gpu_hold", "log_level", "socket_mode",
                                                                 "user", "descriptors", "descriptors_reserved",
                                                                 "hello_timeout", "unread_timeout", "idle_exit"});
}

TEST_CASE("a file that is named by a relative path is shown to clients by its whole path") {
  const harness::TempDir folder;
  const std::string file = folder.file("c.toml");
  std::ofstream(file) << "log_level = \"info\"\n";
  Given given;
  given.file = std::filesystem::relative(file).string();
  std::vector<std::string> notes;
  auto config = read_settings(given, notes);
  REQUIRE(config);
  CHECK(config->file.front() == '/');
  CHECK(std::filesystem::equivalent(config->file, file));
  given.file = file;
  CHECK(read_settings(given, notes)->file == file);
}
