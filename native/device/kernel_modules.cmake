# Writes the function gpu::module_of to the file OUTPUT, from the names of the kernels in the code objects
# OBJECTS (ARCH/MODULE.co). In an ELF file for AMD, a kernel NAME has a descriptor NAME.kd. In an ELF file for
# NVIDIA, it has a section .text.NAME, whose name may be stored as the end of a longer name.
set(kernels)
foreach(object IN LISTS OBJECTS)
  get_filename_component(module ${object} NAME_WE)
  file(STRINGS ${object} names REGEX "^[A-Za-z0-9_]+\\.kd$|\\.text\\.[A-Za-z0-9_]+$")
  foreach(name IN LISTS names)
    string(REGEX REPLACE "^.*\\.text\\.|\\.kd$" "" kernel ${name})
    list(APPEND kernels ${kernel})
    set(module_of_${kernel} ${module})
  endforeach()
endforeach()
list(REMOVE_DUPLICATES kernels)
list(SORT kernels)
set(rows)
foreach(kernel IN LISTS kernels)
  string(APPEND rows "      {\"${kernel}\", \"${module_of_${kernel}}\"},\n")
endforeach()
if(OBJECTS AND NOT rows)
  message(FATAL_ERROR "no kernels in ${OBJECTS}")
endif()
file(WRITE ${OUTPUT} "#include <map>

#include \"device/device.h\"

namespace graphopt::gpu {

const char* module_of(const std::string& kernel) {
  static const auto& modules = *new std::map<std::string, const char*>{
${rows}  };
  const auto found = modules.find(kernel);
  return found != modules.end() ? found->second : nullptr;
}

}  // namespace graphopt::gpu
")
