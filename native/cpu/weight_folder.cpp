#include "cpu/weight_folder.h"

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <stdexcept>
#include <vector>

#include "cpu/isa.h"

namespace graphopt::cpu {
namespace {

constexpr size_t kPage = 4096;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr time_t kAbandonedSeconds = 3600;  // age in seconds of an abandoned unfinished file

// The first page of a file.
struct Header {
  std::array<char, 24> magic;
  uint64_t text, original, prepared, checksum;  // sizes in bytes; checksum of the packed weights
  std::array<char, 2048> content;               // names the library, the instruction set and the layout
};
static_assert(sizeof(Header) <= kPage);
constexpr std::array<char, 24> kMagic = {"graphopt weights 1\n"};

size_t pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

class File {
 public:
  explicit File(int number) : number_(number) {}
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (number_ >= 0) close(number_);
  }
  int get() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }

 private:
  int number_;
};

// Returns a hash and the size of this library's file. Another build may pack differently under the same
// layout name, and two builds may have the same version.
std::string library() {
  static const auto& text = *new std::string([]() -> std::string {
    Dl_info info{};
    if (dladdr(reinterpret_cast<const void*>(&library), &info) == 0 || info.dli_fname == nullptr) return "";
    const File file(open(info.dli_fname, O_RDONLY | O_CLOEXEC));
    struct stat status{};
    if (!file || fstat(file.get(), &status) != 0 || status.st_size == 0) return "";
    const auto size = static_cast<size_t>(status.st_size);
    void* bytes = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (bytes == MAP_FAILED) return "";
    char digits[48];
    std::snprintf(digits, sizeof digits, "%016llx, %zu bytes",
                  static_cast<unsigned long long>(hash_of("", bytes, size)), size);
    munmap(bytes, size);
    return digits;
  }());
  return text;
}

bool is_private(const struct stat& status) {
  return status.st_uid == geteuid() && (status.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

bool write_all(int file, const void* data, size_t bytes) {
  const auto* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t count = ::write(file, at, std::min<size_t>(bytes, 1 << 30));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    at += count;
    bytes -= static_cast<size_t>(count);
  }
  return true;
}

bool pad(int file, size_t bytes) {
  static constexpr char kZeros[kPage] = {};
  return write_all(file, kZeros, pages(bytes) - bytes);
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

uint64_t limit_of_process() {
  const char* given = std::getenv("GRAPHOPT_WEIGHTS_LIMIT");
  if (given == nullptr) return 16384 * kMiB;
  const char* end = given + std::strlen(given);
  uint64_t limit = 0;
  const auto [parsed, error] = std::from_chars(given, end, limit);
  if (error != std::errc() || parsed != end || limit > UINT64_MAX / kMiB) {
    throw std::runtime_error(std::string("GRAPHOPT_WEIGHTS_LIMIT must be a number of MiB, not '") + given +
                             "'");
  }
  return limit * kMiB;
}

constexpr const char *kSuffix = ".weights", *kUnfinished = ".unfinished";

}  // namespace

uint64_t hash_of(const std::string& text, const void* data, size_t bytes) {
  uint64_t h = 14695981039346656037ull;
  const auto mix = [&h](uint64_t word) { h = (h ^ word) * 1099511628211ull; };
  for (const char c : text) mix(static_cast<unsigned char>(c));
  const auto* p = static_cast<const unsigned char*>(data);
  for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, p + i, bytes - i < sizeof word ? bytes - i : sizeof word);
    mix(word);
  }
  return h;
}

Memory allocate_lines(size_t bytes) {
  constexpr size_t kLine = 64, kLargePage = 2 << 20;
  const size_t large = bytes / kLargePage * kLargePage;
  Memory memory(std::aligned_alloc(large > 0 ? kLargePage : kLine,
                                   (std::max(bytes, size_t{1}) + kLine - 1) / kLine * kLine),
                std::free);
  if (memory == nullptr) throw std::bad_alloc();
  // A GEMM reads each weight once: with small pages it would need an address translation every 64 cache lines. The
  // remainder, which does not fill a large page, remains in small pages, to waste no memory.
  if (large > 0) madvise(memory.get(), large, MADV_HUGEPAGE);
  return memory;
}

struct WeightFolder::Content {
  std::string text;
  const void* original;
  size_t bytes, prepared_bytes;

  size_t file_bytes() const { return kPage + pages(bytes) + pages(prepared_bytes); }
};

const WeightFolder* WeightFolder::of_process() {
  static const WeightFolder* const folder = []() -> const WeightFolder* {
    const char* path = std::getenv("GRAPHOPT_WEIGHTS");
    if (path == nullptr || *path == '\0' || std::strcmp(path, "off") == 0) return nullptr;
    try {
      return new WeightFolder(path, limit_of_process());
    } catch (const std::exception& e) {
      std::fprintf(stderr, "graphopt: GRAPHOPT_WEIGHTS: each process packs its own weights: %s\n", e.what());
      return nullptr;
    }
  }();
  return folder;
}

WeightFolder::WeightFolder(std::string path, uint64_t max_bytes)
    : path_(std::move(path)), max_bytes_(max_bytes) {
  if (mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST)
    throw std::runtime_error(path_ + " can't be created: " + std::strerror(errno));
  struct stat status{};
  if (stat(path_.c_str(), &status) != 0 || !S_ISDIR(status.st_mode))
    throw std::runtime_error(path_ + " is not a folder");
  if (!is_private(status)) throw std::runtime_error("other users may write to " + path_);
  if (library().empty()) throw std::runtime_error("this library's file can't be read");
}

MappedWeights WeightFolder::get(uint64_t key, const std::string& layout, const void* weights, size_t bytes,
                                size_t prepared_bytes,
                                const std::function<void(void* prepared)>& prepare) const {
  const Content content = {library() + "\n" + isa_name(isa()) + "\n" + layout, weights, bytes,
                           prepared_bytes};
  if (content.text.size() > sizeof Header::content || content.file_bytes() > max_bytes_) return {};
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx",
                static_cast<unsigned long long>(key ^ hash_of(content.text, nullptr, 0)));
  const std::string file = path_ + "/" + digits + kSuffix;
  MappedWeights found = find(file, content);
  if (found.prepared != nullptr) return found;
  const Memory prepared = allocate_lines(prepared_bytes);
  std::memset(prepared.get(), 0, prepared_bytes);  // prepare() does not write padding
  prepare(prepared.get());
  if (!write(file, content, prepared.get())) return {};
  return find(file, content);
}

MappedWeights WeightFolder::find(const std::string& path, const Content& content) const {
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!file) return {};
  struct stat status{};
  const size_t size = content.file_bytes();
  if (fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) || !is_private(status) ||
      status.st_size != static_cast<off_t>(size))
    return {};
  void* mapped = mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) return {};
  const std::shared_ptr<const char> whole(static_cast<const char*>(mapped),
                                          [size](const char* p) { munmap(const_cast<char*>(p), size); });
  Header header;
  std::memcpy(&header, whole.get(), sizeof header);
  const char* original = whole.get() + kPage;
  const char* prepared = original + pages(content.bytes);
  const bool equal = header.magic == kMagic && header.text == content.text.size() &&
                     header.original == content.bytes && header.prepared == content.prepared_bytes &&
                     std::memcmp(header.content.data(), content.text.data(), content.text.size()) == 0 &&
                     (content.bytes == 0 || std::memcmp(original, content.original, content.bytes) == 0) &&
                     header.checksum == hash_of("", prepared, content.prepared_bytes);
  if (!equal) return {};
  futimens(file.get(), nullptr);  // marks the file as the most recently used, which is removed last
  return {std::shared_ptr<const void>(whole, prepared), original};
}

bool WeightFolder::write(const std::string& path, const Content& content, const void* prepared) const {
  make_room(content.file_bytes());
  static std::atomic<unsigned> number{0};
  const std::string unfinished =
      path + "." + std::to_string(getpid()) + "." + std::to_string(number++) + kUnfinished;
  bool written = false;
  {
    const File file(open(unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!file) return false;
    Header header = {kMagic,
                     content.text.size(),
                     content.bytes,
                     content.prepared_bytes,
                     hash_of("", prepared, content.prepared_bytes),
                     {}};
    std::memcpy(header.content.data(), content.text.data(), content.text.size());
    written = write_all(file.get(), &header, sizeof header) && pad(file.get(), sizeof header) &&
              write_all(file.get(), content.original, content.bytes) && pad(file.get(), content.bytes) &&
              write_all(file.get(), prepared, content.prepared_bytes) &&
              pad(file.get(), content.prepared_bytes) && fsync(file.get()) == 0;
  }
  // Keep the file of the first writer, so all processes map the same one, but replace an invalid file.
  if (written && link(unfinished.c_str(), path.c_str()) != 0 && errno == EEXIST &&
      find(path, content).prepared == nullptr)
    written = rename(unfinished.c_str(), path.c_str()) == 0;
  unlink(unfinished.c_str());
  if (const File folder(open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)); folder) fsync(folder.get());
  return written;
}

void WeightFolder::make_room(uint64_t bytes) const {
  struct Known {
    timespec used;
    uint64_t bytes;
    std::string path;
  };
  std::vector<Known> files;
  uint64_t all = bytes;
  DIR* folder = opendir(path_.c_str());
  if (folder == nullptr) return;
  const time_t now = std::time(nullptr);
  while (const dirent* entry = readdir(folder)) {
    const std::string path = path_ + "/" + entry->d_name;
    struct stat status{};
    if (lstat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    if (ends_with(path, kUnfinished)) {  // left by a killed process
      if (now - status.st_mtim.tv_sec > kAbandonedSeconds) unlink(path.c_str());
    } else if (ends_with(path, kSuffix)) {
      files.push_back({status.st_mtim, static_cast<uint64_t>(status.st_size), path});
      all += files.back().bytes;
    }
  }
  closedir(folder);
  std::sort(files.begin(), files.end(), [](const Known& a, const Known& b) {
    return a.used.tv_sec != b.used.tv_sec ? a.used.tv_sec < b.used.tv_sec : a.used.tv_nsec < b.used.tv_nsec;
  });
  for (const Known& file : files) {
    if (all <= max_bytes_) break;
    if (unlink(file.path.c_str()) == 0) all -= file.bytes;
  }
}

}  // namespace graphopt::cpu
