// SPDX-License-Identifier: Apache-2.0
// Columns, order and filters over rows of named fields.
#include <doctest/doctest.h>

#include "tools/host/sheet.hpp"
#include "tools/host/width.hpp"

using shmb::host::FieldKind;
using shmb::host::Filter;
using shmb::host::Sheet;
using shmb::host::Value;

namespace {

// The C library keeps its list of character sets mapped from its first use on. No case is to be blamed for that.
[[maybe_unused]] const std::size_t kSheetWarmedUp = shmb::host::columns("\xc3\xa9");

Sheet sample() {
  const auto pids = [](std::vector<std::string> list) { return Value(std::move(list)); };
  return {{{"name", "NAME", "", FieldKind::text, true},
           {"size", "SIZE", "", FieldKind::size, true},
           {"age", "AGE", "", FieldKind::age, false},
           {"links", "LINKS", "", FieldKind::number, false},
           {"pids", "PIDS", "", FieldKind::list, false}},
          {{std::string("nccl-a"), std::uint64_t{4096}, std::uint64_t{60}, std::uint64_t{1}, pids({"7", "8"})},
           {std::string("psm_b"), std::uint64_t{2UL << 30}, std::uint64_t{7200}, std::uint64_t{2}, pids({})},
           {std::string("two words"), Value(), std::uint64_t{0}, std::uint64_t{1}, pids({"9"})}}};
}

// The names of the rows that pass, one letter each.
std::string passing(const std::string& text) {
  const Sheet sheet = sample();
  auto filter = Filter::parse(text, sheet);
  if (!filter) return "ERROR " + filter.error().sentence;
  std::string out;
  for (const auto& row : sheet.rows)
    if (filter->passes(row)) out += std::get<std::string>(row[0])[0];
  return out;
}

}  // namespace

TEST_CASE("a filter's terms all hold of the rows that pass") {
  CHECK(passing("") == "npt");
  CHECK(passing("name=nccl-*") == "n");
  CHECK(passing("name!=nccl-*") == "pt");
  CHECK(passing("!name=nccl-*") == "pt");
  CHECK(passing("size>1G") == "p");
  CHECK(passing("size>=4K size<1M") == "n");
  CHECK(passing("size=4096") == "n");
  CHECK(passing("age>1h") == "p");
  CHECK(passing("age<=1m links=1") == "nt");
  CHECK(passing("links!=1") == "p");
  CHECK(passing("pids=8") == "n");
  CHECK(passing("pids=[79]") == "nt");
  CHECK(passing("psm_b") == "p");
  CHECK(passing("!psm_b") == "nt");
  CHECK(passing("9") == "t");
  CHECK(passing("name=\"two words\"") == "t");
  CHECK(passing("\"two words\"") == "t");
  CHECK(passing("  name=*   links=2  ") == "p");
}

TEST_CASE("an unknown value passes no comparison, and no denied one fails for it") {
  CHECK(passing("size>0") == "np");
  CHECK(passing("!size>0") == "t");
}

TEST_CASE("a filter with an error shows where it is") {
  CHECK(passing("name=x sise>1") ==
        "ERROR filter, at character 8: there is no field 'sise'; there are: name, size, age, links, pids\n"
        "  name=x sise>1\n"
        "         ^");
  // Two characters of Japanese take four columns.
  CHECK(passing("name=\xe6\x97\xa5\xe6\x9c\xac sise>1")
            .ends_with("\n  name=\xe6\x97\xa5\xe6\x9c\xac sise>1\n            ^"));
  CHECK(passing("name>x").starts_with("ERROR filter, at character 5: 'name' is a text: use = or !="));
  CHECK(passing("size>").starts_with("ERROR filter, at character 6: a value is missing here"));
  CHECK(passing("size>lots").starts_with("ERROR filter, at character 6: "));
  CHECK(passing("links>2x").starts_with("ERROR filter, at character 7: "));
  CHECK(passing("age<soon").starts_with("ERROR filter, at character 5: "));
  CHECK(passing("name=\"x").starts_with("ERROR filter, at character 6: this quote has no end"));
  CHECK(passing("name!x").starts_with("ERROR filter, at character 5: expected =, !=, <, <=, > or >="));
  CHECK(passing("a !").starts_with("ERROR filter, at character 3: a term is missing here"));
}

TEST_CASE("numbers fall and texts rise by default; a minus turns that round; unknown values come last") {
  const auto order = [](const char* list) {
    Sheet sheet = sample();
    REQUIRE(sheet.sort(list));
    std::string out;
    for (const auto& row : sheet.rows) out += std::get<std::string>(row[0])[0];
    return out;
  };
  CHECK(order("name") == "npt");
  CHECK(order("-name") == "tpn");
  CHECK(order("size") == "pnt");
  CHECK(order("-size") == "npt");
  CHECK(order("links,name") == "pnt");
  CHECK(order("-links,-name") == "tnp");
  Sheet sheet = sample();
  const auto wrong = sheet.sort("nothing");
  REQUIRE_FALSE(wrong);
  CHECK(wrong.error().sentence == "there is no field 'nothing'; there are: name, size, age, links, pids");
}

TEST_CASE("columns are those by default, those named, or more") {
  const Sheet sheet = sample();
  using Columns = std::vector<std::size_t>;
  CHECK(sheet.columns("").value() == Columns{0, 1});
  CHECK(sheet.columns("age,name").value() == Columns{2, 0});
  CHECK(sheet.columns("+pids").value() == Columns{0, 1, 4});
  CHECK(sheet.columns("+pids,links").value() == Columns{0, 1, 4, 3});
  CHECK(sheet.columns("+pids,+links").value() == Columns{0, 1, 4, 3});
  CHECK_FALSE(sheet.columns("name,+pids"));
  CHECK_FALSE(sheet.columns("name,none"));
}
