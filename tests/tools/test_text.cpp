// SPDX-License-Identifier: Apache-2.0
// The parts of the tool that make text: what hostile bytes become, how tables line up, which exit code a status has.
#include <doctest/doctest.h>
#include <stdlib.h>

#include <set>
#include <sstream>

#include "proto/shmb_wire.h"
#include "tools/exit_code.hpp"
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
  CHECK(table.text(false) ==
        "GROUP      SIZE  STATE\n"
        "train  64.0 MiB  ready\n"
        "j\xc3\xb6rg    4.0 KiB  -\n");
}

TEST_CASE("a cell with escape sequences cannot reach the terminal, and only the head has colour") {
  Table table({{"NAME"}, {"X"}});
  table.add({"\x1b]0;owned\x07", "1"});
  CHECK(table.text(false).find('\x1b') == std::string::npos);
  CHECK(table.text(false).find('\x07') == std::string::npos);
  const std::string coloured = table.text(true);
  CHECK(coloured.starts_with("\x1b[1mNAME"));
  CHECK(coloured.rfind('\x1b') < coloured.find('\n'));
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
  SessionRow row;
  row.library = "evil\x1b[2J\xff\xc3\xb6";
  Json json = document("list");
  json["session"] = session_json(row);
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
