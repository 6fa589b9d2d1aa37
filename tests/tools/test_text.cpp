// SPDX-License-Identifier: Apache-2.0
// The parts of the tool that make text: what hostile bytes become, how tables line up, which exit code a status has.
#include <doctest/doctest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "proto/shmb_wire.h"
#include "tests/harness/temp_dir.hpp"
#include "tools/exit_code.hpp"
#include "tools/hidden.hpp"
#include "tools/printable.hpp"
#include "tools/report_json.hpp"
#include "tools/resolve.hpp"
#include "tools/table.hpp"

using namespace shmb;
using namespace shmb::tools;

TEST_CASE("control bytes, C1 controls and marks that turn text round never come through") {
  CHECK(printable("plain name") == "plain name");
  CHECK(printable("\x1b[2J") == "\\x1b[2J");
  CHECK(printable("a\nb\rc\x7f") == "a\\x0ab\\x0dc\\x7f");
  CHECK(printable(std::string_view("\0", 1)) == "\\x00");
  CHECK(printable("\xc2\x9b"
                  "31m") == "\\xc2\\x9b31m");  // C1 CSI
  CHECK(printable("\x9b"
                  "31m") == "\\x9b31m");  // the same as a raw byte
  CHECK(printable("\xe2\x80\xae"
                  "exe") == "\\xe2\\x80\\xaeexe");  // right-to-left override
  CHECK(printable("\xef\xbb\xbf"
                  "x") == "\\xef\\xbb\\xbfx");            // byte order mark
  CHECK(printable("\xe2\x80\xa8") == "\\xe2\\x80\\xa8");  // line separator
}

TEST_CASE("other languages are readable, and what is not UTF-8 is shown byte by byte") {
  CHECK(printable("j\xc3\xb6rg") == "j\xc3\xb6rg");
  CHECK(printable("\xe6\x97\xa5\xe6\x9c\xac") == "\xe6\x97\xa5\xe6\x9c\xac");
  CHECK(printable("\xf0\x9f\x90\x9a") == "\xf0\x9f\x90\x9a");
  CHECK(printable("\xc3") == "\\xc3");                             // cut off
  CHECK(printable("\xc0\xaf") == "\\xc0\\xaf");                    // overlong
  CHECK(printable("\xed\xa0\x80") == "\\xed\\xa0\\x80");           // surrogate
  CHECK(printable("\xf5\x80\x80\x80") == "\\xf5\\x80\\x80\\x80");  // beyond the last code point
}

TEST_CASE("printable gives no byte below space for any two bytes") {
  for (int a = 0; a < 256; ++a)
    for (int b = 0; b < 256; ++b) {
      const char pair[2] = {static_cast<char>(a), static_cast<char>(b)};
      for (unsigned char c : printable(std::string_view(pair, 2))) {
        if (c < 0x20 || c == 0x7f) FAIL_CHECK("bytes " << a << " " << b << " came through");
      }
    }
}

TEST_CASE("a table's columns line up, numbers to the right, and nothing trails") {
  Table table({{"GROUP"}, {"SIZE", Align::right}, {"STATE"}});
  table.add({"train", "64.0 MiB", "ready"});
  table.add({"j\xc3\xb6rg", "4.0 KiB", ""});
  CHECK(table.text({}) ==
        "GROUP      SIZE  STATE\n"
        "train  64.0 MiB  ready\n"
        "j\xc3\xb6rg    4.0 KiB  -\n");
}

TEST_CASE("a cell with escape sequences cannot reach the terminal, and only the head has colour") {
  Table table({{"NAME"}, {"X"}});
  table.add({"\x1b]0;owned\x07", "1"});
  CHECK(table.text({}).find('\x1b') == std::string::npos);
  CHECK(table.text({}).find('\x07') == std::string::npos);
  const std::string coloured = table.text({.colour = true});
  CHECK(coloured.starts_with("\x1b[1mNAME"));
  CHECK(coloured.rfind('\x1b') < coloured.find('\n'));
}

namespace {

// The C library keeps its list of character sets mapped from its first use on. No case is to be blamed for that.
[[maybe_unused]] const std::size_t kTextWarmedUp = columns("\xc3\xa9");

std::size_t widest(const std::string& text) {
  std::size_t most = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) most = std::max(most, columns(line));
  return most;
}

Table frames() {
  Table table({{"GROUP", Align::left, true},
               {"REGION", Align::left, true},
               {"SIZE", Align::right},
               {"PAGES", Align::left, false, 2},
               {"AGE", Align::right, false, 1},
               {"STATE", Align::left, true}});
  table.add({"camera-pipeline-of-the-north-gate", "frames-left-0001", size_cell({}, 64 << 20), "2M", "3h12m", "ready"},
            "@1.1");
  table.add({"camera-pipeline-of-the-north-gate", "frames-left-0002", size_cell({}, 4096), "4K", "19d", "published"},
            "@2.1");
  return table;
}

}  // namespace

TEST_CASE("a table is as wide as the terminal at most: names are cut, then columns leave and are named, numbers stay") {
  const std::string whole = frames().text({});
  CHECK(whole.find('~') == std::string::npos);
  CHECK(frames().text({.columns = 200}) == whole);
  CHECK(frames().text({.columns = widest(whole)}) == whole);
  for (std::size_t room = 5; room < widest(whole); ++room) {
    CAPTURE(room);
    const std::string text = frames().text({.columns = room});
    CHECK(widest(text) <= room);
    CHECK(std::ranges::count(text, '\n') == (text.find("(no") == std::string::npos ? 3 : 4));
  }
  // The group's name is longer than it must be: the others stay whole, with its beginning and its end.
  const std::string cut = frames().text({.columns = 70});
  CHECK(cut.find("frames-left-0002") != std::string::npos);
  CHECK(cut.find("64.0 MiB") != std::string::npos);
  CHECK(cut.find("3h12m") != std::string::npos);
  CHECK(cut.find("camera-") == cut.find('\n') + 1);
  CHECK(cut.find("gate") != std::string::npos);
  CHECK(cut.find("camera-pipeline-of-the-north-gate") == std::string::npos);
  CHECK(cut.find("no room") == std::string::npos);
  // Now what says least leaves, in order, before names get illegible.
  const std::string narrow = frames().text({.columns = 64});
  CHECK(narrow.find("3h12m") == std::string::npos);
  CHECK(narrow.find("PAGES  ") != std::string::npos);
  CHECK(narrow.ends_with("(no room for AGE)\n"));
  const std::string narrower = frames().text({.columns = 56});
  CHECK(narrower.ends_with("(no room for PAGES, AGE)\n"));
  CHECK(narrower.find("64.0 MiB") != std::string::npos);
  CHECK(narrower.find("frames-left-0001") != std::string::npos);
}

TEST_CASE("a cut never parts a character, and the head's colour takes no room") {
  Table table({{"NAME", Align::left, true}});
  table.add({"j\xc3\xb6rg-j\xc3\xb6rg-j\xc3\xb6rg-j\xc3\xb6rg"});
  for (std::size_t room = 5; room < 20; ++room) {
    const std::string text = table.text({.columns = room});
    CHECK(widest(text) == room);
    CHECK(printable(text.substr(text.find('\n') + 1, text.rfind('\n') - text.find('\n') - 1)).find("\\x") ==
          std::string::npos);
  }
  CHECK(table.text({.colour = true, .columns = 10}).starts_with("\x1b[1mNAME\x1b[0m\n"));
}

TEST_CASE("wide characters take two columns and combined marks none, also where a name is cut") {
  CHECK(columns("\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e") == 6);  // three characters of Japanese
  CHECK(columns("\xed\x95\x9c\xea\xb8\x80.bin") == 8);          // two of Korean
  CHECK(columns("\xf0\x9f\x98\x80") == 2);                      // an emoji
  CHECK(columns("e\xcc\x81t\xc3\xa9") == 3);                    // an accent as a mark, and as part of its letter
  Table table({{"NAME", Align::left, true}, {"SIZE", Align::right}});
  const std::string long_name =
      "\xe6\x97\xa5\xe6\x9c\xac-\xe8\xaa\x9e\xe6\x97\xa5-\xe6\x9c\xac\xe8\xaa\x9e-e\xcc\x81-\xe6\x97\xa5\xe6\x9c\xac";
  table.add({long_name, "1 B"});
  table.add({"plain", "22 KiB"});
  std::istringstream lines(table.text({}));
  for (std::string line; std::getline(lines, line);) CHECK(columns(line) == columns(long_name) + 8);
  for (std::size_t room = 12; room < columns(long_name) + 8; ++room) {
    CAPTURE(room);
    std::istringstream narrow(table.text({.columns = room}));
    for (std::string line; std::getline(narrow, line);) {
      CHECK(columns(line) == room);
      CHECK(printable(line) == line);
    }
  }
}

TEST_CASE("a table is sorted by any of its columns: numbers from the largest on, texts from A to Z; ids follow") {
  Table table({{"NAME"}, {"SIZE", Align::right}, {"WORKER"}});
  table.add({"b", size_cell({}, 9 << 20), "x"}, "@1");
  table.add({"a", size_cell({}, 10 << 10), "y"}, "@2");
  table.add_below({"", "", "of a"});
  table.add({"c", size_cell({}, 11 << 20), "z"}, "@3");
  CHECK(table.sort_by("size"));
  CHECK(table.ids() == "@3\n@1\n@2\n");
  CHECK(table.sort_by("NAME"));
  CHECK(table.ids() == "@2\n@1\n@3\n");
  const std::string text = table.text({});
  CHECK(text.find("of a") < text.find("\nb "));  // what belongs to a row stays below it
  CHECK_FALSE(table.sort_by("colour"));
  CHECK(table.titles() == "name, size, worker");
}

TEST_CASE("the list says what holds a region without a holder, and says nothing about others") {
  shmbw_region_record record{};
  record.state = SHMBW_REGION_STATE_READY;
  CHECK(held_text(record, {}).empty());
  record.tickets = 1;
  CHECK(held_text(record, {}) == ", only 1 ticket holds it");
  record.queues = 2;
  CHECK(held_text(record, {}) == ", only 1 ticket and 2 queues hold it");
  record.tickets = 0;
  CHECK(held_text(record, {}) == ", only 2 queues hold it");
  record.holders = 1;
  CHECK(held_text(record, {}).empty());
  record.holders = 0;
  record.flags = SHMBW_REGION_NAMED;
  CHECK(held_text(record, {}).empty());
  record.pool = 21;
  CHECK(held_text(record, {}) == ", slots of pool @21");
  PoolRow pool;
  pool.record.pool = 21;
  pool.record.owner_uid = ::geteuid();
  pool.group = "cam";
  pool.name = "frames";
  CHECK(held_text(record, {pool}) == ", slots of cam/frames");
}

TEST_CASE("other users' private brokers are found by name and place, and only by root") {
  harness::TempDir proc;
  const auto process = [&](const std::string& pid, const std::string& comm, const std::string& words, int uid) {
    std::filesystem::create_directory(proc.file(pid));
    std::ofstream(proc.file(pid + "/comm")) << comm << "\n";
    std::ofstream(proc.file(pid + "/cmdline")) << words;
    std::ofstream(proc.file(pid + "/status")) << "Name:\t" << comm << "\nUid:\t" << uid << "\t" << uid << "\n";
  };
  using namespace std::string_literals;
  process("17", "shmbrokerd", "/x/shmbrokerd\0--private\0--directory\0/run/user/1000/shmbroker\0--ready-fd\0003\0"s,
          1000);
  process("18", "shmbrokerd", "/x/shmbrokerd\0--system\0"s, 990);
  process("19", "shmbrokerd", "/x/shmbrokerd\0--private\0"s, 1001);
  process("20", "bash", "bash\0--directory\0/x\0"s, 1000);
  process("21", "shmbrokerd", "/x/shmbrokerd\0--private\0"s, 0);
  process("self", "shmbrokerd", "/x/shmbrokerd\0--private\0"s, 1000);
  const auto found = other_brokers(proc.path());
  if (::geteuid() != 0) {
    CHECK(found.empty());
    return;
  }
  REQUIRE(found.size() == 2);
  CHECK(found[0].pid == 17);
  CHECK(found[0].uid == 1000);
  CHECK(found[0].socket == "/run/user/1000/shmbroker/socket");
  CHECK(found[1].socket == "/tmp/shmbroker-1001/socket");
  CHECK(hidden_text({1, {}}) == "not shown: 1 region of other users (--all-groups)\n");
  CHECK(brokers_text(found).find(", pid 17 (--socket /run/user/1000/shmbroker/socket)\n") != std::string::npos);
}

TEST_CASE("labels and values are made printable too") {
  CHECK(label_lines({{"found", "at /tmp/\x1b[31m"}, {"x", ""}}) == "found  at /tmp/\\x1b[31m\nx\n");
}

TEST_CASE("each status has the exit code that the manual promises") {
  CHECK(exit_code(Status::ok) == 0);
  CHECK(exit_code(Status::system) == 1);
  CHECK(exit_code(Status::invalid) == 2);
  for (Status status : {Status::no_broker, Status::session_lost}) CHECK(exit_code(status) == 3);
  for (Status status : {Status::limit, Status::denied, Status::exists, Status::write_closed, Status::still_mapped,
                        Status::no_memory, Status::group_ended})
    CHECK(exit_code(status) == 4);
  for (Status status : {Status::not_found, Status::stale}) CHECK(exit_code(status) == 5);
  CHECK(exit_code(Status::deadline) == 124);
}

TEST_CASE("a bare name is in the shell's group, or in the group that the environment names") {
  ::unsetenv("SHMBROKER_GROUP");
  CHECK(resolve("kv")->address == default_group() + "/kv");
  CHECK(resolve("train/kv")->address == "train/kv");
  CHECK(resolve("1000:train/kv")->address == "1000:train/kv");
  ::setenv("SHMBROKER_GROUP", "train:00000000000000000000000000000001", 1);
  CHECK(resolve("kv")->address == "kv");
  ::unsetenv("SHMBROKER_GROUP");
}

TEST_CASE("ids are read as `list -q` prints them") {
  auto target = resolve("@17.2");
  REQUIRE(target.has_value());
  CHECK(target->id->id == 17);
  CHECK(target->id->generation == 2);
  CHECK(resolve(id_text({99, 1, 0}))->id->id == 99);
  CHECK(resolve("@17")->id->generation == 0);
  for (const char* wrong : {"@", "@0", "@x", "@17.", "@17.x", "@17.2.3", "@-1", "@17 ", "@99999999999999999999999"})
    CHECK(resolve(wrong).error().status == Status::invalid);
}

TEST_CASE("an address that no region can have is refused with a sentence") {
  for (const char* wrong : {"", "/", "a/", "/b", "a/b/c", ".hidden", "a/.b", "x y", "uid:a/b", "a\x1b/b"}) {
    auto target = resolve(wrong);
    REQUIRE_FALSE(target.has_value());
    CHECK(target.error().status == Status::invalid);
    CHECK_FALSE(target.error().sentence.empty());
  }
}

TEST_CASE("JSON names its schema first and is ASCII whatever a program calls itself") {
  Json json = document("list");
  json["program"] = "evil\x1b[2J\xff\xc3\xb6";
  const std::string text = dump(json);
  CHECK(text.starts_with("{\n  \"schema\": \"shmbroker.list/1\""));
  for (unsigned char c : text) CHECK((c == '\n' || (c >= 0x20 && c < 0x7f)));
}

TEST_CASE("access is rw until writing is closed, and ro* where read-only is no boundary") {
  shmbw_region_record record{};
  record.state = SHMBW_REGION_STATE_READY;
  CHECK(access_text(record) == "rw");
  record.state = SHMBW_REGION_STATE_WRITE_CLOSED;
  CHECK(access_text(record) == "ro");
  record.state = SHMBW_REGION_STATE_PUBLISHED;
  CHECK(access_text(record) == "ro");
  record.flags = SHMBW_REGION_MANY_WRITERS;
  CHECK(access_text(record) == "ro*");
}

TEST_CASE("a number that a newer broker sends for a state is shown as unknown, not read past a table") {
  CHECK(page_text(4000000000U) == "unknown");
  CHECK(session_state_text(77) == "unknown");
  shmbw_region_record record{};
  record.state = 1234567;
  CHECK(state_text(record) == "unknown");
  CHECK(mode_text(99) == "unknown");
  CHECK(engine_text(99) == "unknown");
}

TEST_CASE("rights are named in one order") {
  CHECK(rights_text(0).empty());
  CHECK(rights_text(15) == "read write share release");
  CHECK(rights_text(1 | 8) == "read release");
}
