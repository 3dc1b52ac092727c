#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "cpu/weight_cache.h"
#include "testing.h"

namespace graphopt::test {
namespace {

namespace fs = std::filesystem;
using cpu::WeightCache;
using cpu::WeightFolder;

constexpr uint64_t kMost = uint64_t{1} << 30;

class Place {
 public:
  Place() {
    char name[] = "/tmp/graphopt-weights-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    path_ = name;
  }
  ~Place() { fs::remove_all(path_); }
  std::string path() const { return path_.string(); }
  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(path_)) found.push_back(entry.path());
    return found;
  }
  // Makes all files older, since the time resolution of a file system may be too coarse for two consecutive
  // uses.
  void age() const {
    for (const fs::path& file : files())
      fs::last_write_time(file, fs::last_write_time(file) - std::chrono::minutes(1));
  }

 private:
  fs::path path_;
};

constexpr size_t kElements = 5000;
std::vector<float> numbers(float first) {
  std::vector<float> w(kElements, 1.0f);
  w[0] = first;
  return w;
}

// "Packs" weights in reverse, with an empty cache as in a new process.
std::vector<float> packed(const WeightFolder* folder, const std::vector<float>& w, int& made,
                          const std::string& layout = "reverse") {
  WeightCache cache(folder);
  const size_t bytes = w.size() * sizeof(float);
  const auto p = cache.get(layout, w.data(), bytes, bytes, [&](void* to) {
    ++made;
    std::copy(w.rbegin(), w.rend(), static_cast<float*>(to));
  });
  CHECK(reinterpret_cast<uintptr_t>(p.get()) % 64 == 0);
  const auto* begin = static_cast<const float*>(p.get());
  return {begin, begin + w.size()};
}

std::vector<float> reverse(std::vector<float> w) {
  std::reverse(w.begin(), w.end());
  return w;
}

TEST_CASE("weights are packed once for all processes") {
  const Place place;
  const WeightFolder folder(place.path(), kMost);
  int made = 0;
  const std::vector<float> w = numbers(7);
  CHECK(packed(&folder, w, made) == reverse(w));
  CHECK(made == 1);
  CHECK(packed(&folder, w, made) == reverse(w));
  CHECK(made == 1);
  CHECK(packed(&folder, numbers(8), made) == reverse(numbers(8)));
  CHECK(made == 2);  // other weights
  packed(&folder, w, made, "another layout");
  CHECK(made == 3);
  CHECK(place.files().size() == 3);
  CHECK(packed(nullptr, w, made) == reverse(w));
  CHECK(made == 4);  // without a folder
}

TEST_CASE("equal weights of one process share a mapping") {
  const Place place;
  const WeightFolder folder(place.path(), kMost);
  WeightCache cache(&folder);
  const std::vector<float> w = numbers(7), equal = w, other = numbers(8);
  const auto get = [&](const std::vector<float>& v) {
    return cache.get("copy", v.data(), kElements * 4, kElements * 4,
                     [&](void* to) { std::copy(v.begin(), v.end(), static_cast<float*>(to)); });
  };
  const auto first = get(w);
  CHECK((get(equal) == first));
  CHECK((get(other) != first));
}

TEST_CASE("padding that prepare() does not write is zero in a file") {
  const Place place;
  const WeightFolder folder(place.path(), kMost);
  constexpr size_t kBytes = 4096;
  std::memset(cpu::allocate_lines(kBytes).get(), 0x55, kBytes);  // the next allocation may reuse this memory
  WeightCache cache(&folder);
  const float weight = 7;
  const auto p = cache.get("no elements", &weight, sizeof weight, kBytes, [](void*) {});
  const auto* bytes = static_cast<const unsigned char*>(p.get());
  CHECK(std::all_of(bytes, bytes + kBytes, [](unsigned char byte) { return byte == 0; }));
}

TEST_CASE("a damaged file of weights is not used") {
  const Place place;
  const WeightFolder folder(place.path(), kMost);
  const std::vector<float> w = numbers(7);
  int made = 0;
  packed(&folder, w, made);
  const std::string file = place.files().at(0).string();
  const auto size = static_cast<std::streamoff>(fs::file_size(file));
  int expected = 1;
  // The magic, the text, the original weights, and the packed weights.
  for (const std::streamoff at :
       {std::streamoff{0}, std::streamoff{60}, std::streamoff{4096}, size / 2 + 4096}) {
    std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(at).put(0x55);
    CHECK(packed(&folder, w, made) == reverse(w));
    CHECK_MESSAGE(made == ++expected, "damage at ", at);
    CHECK(packed(&folder, w, made) == reverse(w));
    CHECK(made == expected);  // repaired
  }
  fs::resize_file(file, 100);
  CHECK(packed(&folder, w, made) == reverse(w));
  CHECK(made == ++expected);
  CHECK(place.files().size() == 1);
}

TEST_CASE("a folder that others may write to is not used") {
  const Place place;
  chmod(place.path().c_str(), 0770);
  std::string said;
  try {
    const WeightFolder folder(place.path(), kMost);
  } catch (const std::runtime_error& e) {
    said = e.what();
  }
  CHECK(said.find("other users may write to") == 0);
  chmod(place.path().c_str(), 0755);
  const WeightFolder folder(place.path(), kMost);
  int made = 0;
  const std::vector<float> w = numbers(7);
  packed(&folder, w, made);
  chmod(place.files().at(0).c_str(), 0666);  // such a file is not used either
  CHECK((packed(&folder, w, made) == reverse(w) && made == 2));
}

TEST_CASE("a writer of weights that is killed leaves nothing that counts") {
  const Place place;
  const WeightFolder folder(place.path(), kMost);
  const std::vector<float> w = numbers(7);
  int made = 0;
  const pid_t child = fork();
  if (child == 0) {
    WeightCache(&folder).get("reverse", w.data(), kElements * 4, kElements * 4,
                             [](void*) { kill(getpid(), SIGKILL); });
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFSIGNALED(status));
  // An unfinished file from an hour ago, and one that is still being written.
  const std::string old = place.path() + "/1.weights.1.0.unfinished",
                    young = place.path() + "/2.weights.2.0.unfinished";
  std::ofstream(old) << "half";
  std::ofstream(young) << "half";
  const timespec long_ago[2] = {{1000, 0}, {1000, 0}};
  utimensat(AT_FDCWD, old.c_str(), long_ago, 0);
  CHECK(packed(&folder, w, made) == reverse(w));
  CHECK(made == 1);
  CHECK(!fs::exists(old));
  CHECK(fs::exists(young));
  CHECK(packed(&folder, w, made) == reverse(w));
  CHECK(made == 1);
}

TEST_CASE("processes that write the same weights share the first file") {
  const Place place;
  const WeightFolder folder(place.path(), kMost);
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      int made = 0;
      bool right = true;
      for (int turn = 0; turn < 20; ++turn) {
        const std::vector<float> w = numbers(static_cast<float>(turn));
        right = right && packed(&folder, w, made) == reverse(w);
      }
      _exit(right ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
  }
  CHECK(place.files().size() == 20);
  int made = 0;
  packed(&folder, numbers(0), made);
  CHECK(made == 0);
}

TEST_CASE("a folder of weights keeps its size limit") {
  const Place place;
  constexpr uint64_t kFile = 4096 + 2 * 20480;  // one page, and 20,000 bytes twice
  const WeightFolder folder(place.path(), 3 * kFile);
  int made = 0;
  // 1 is used again, so 2 is the least recently used.
  for (const float n : {1.0f, 2.0f, 3.0f, 1.0f, 4.0f}) {
    packed(&folder, numbers(n), made);
    place.age();
  }
  CHECK(made == 4);
  CHECK(place.files().size() == 3);
  packed(&folder, numbers(1), made);
  CHECK(made == 4);
  place.age();
  packed(&folder, numbers(2), made);
  CHECK(made == 5);
  CHECK(place.files().size() == 3);
  const WeightFolder small(place.path(), kFile / 2);  // nothing fits, but weights are packed
  CHECK((packed(&small, numbers(9), made) == reverse(numbers(9)) && made == 6));
}

}  // namespace
}  // namespace graphopt::test
