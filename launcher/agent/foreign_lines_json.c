#include "launcher/agent/foreign_lines_json.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <string.h>

#include "launcher/report/events.h"
#include "base/cleanup.h"
#include "base/utf8.h"
#include "rendezvous/session/fields_json.h"

static const char *const command_names[FOREIGN_COMMAND_COUNT] = {[FOREIGN_READY] = "ready",
                                                                 [FOREIGN_FAILED] = "failed",
                                                                 [FOREIGN_DONE] = "done",
                                                                 [FOREIGN_LEAVE] = "leave"};

static const struct field command_fields[] = {
    {"do", FIELD_WORD_AT(struct foreign_command, kind, command_names), .required = true},
    {"fatal", FIELD_BOOL, offsetof(struct foreign_command, is_fatal)},
    {"text", FIELD_TEXT, offsetof(struct foreign_command, text), .size = SESSION_TEXT_SIZE},
};

static_assert((int)FOREIGN_FAULT_SIZE == (int)FIELDS_ERROR_SIZE, "what is wrong with a field fits");

bool foreign_command_read(const char *line, size_t n_bytes, struct foreign_command *ret,
                          char fault[FOREIGN_FAULT_SIZE])
{
    _cleanup_json_ cJSON *object = cJSON_ParseWithLength(line, n_bytes);

    *ret = (struct foreign_command){0};
    if (!cJSON_IsObject(object)) {
        (void)strcpy(fault, "it is no JSON object");
        return false;
    }
    if (!fields_read(object, FIELDS_OF(command_fields), ret, fault))
        return false;
    text_clean(ret->text);
    return true;
}

char *foreign_start_line(unsigned generation, const struct rank_assignment *assignment, const char *cause)
{
    _cleanup_json_ cJSON *object = cJSON_CreateObject();
    bool is_whole = cJSON_AddStringToObject(object, "event", "start") &&
                    cJSON_AddNumberToObject(object, "generation", generation) &&
                    cJSON_AddNumberToObject(object, "group_rank", assignment->group_rank) &&
                    cJSON_AddNumberToObject(object, "group_world_size", assignment->group_world_size) &&
                    cJSON_AddStringToObject(object, "master_addr", assignment->master_addr) &&
                    cJSON_AddNumberToObject(object, "master_port", assignment->master_port) &&
                    cJSON_AddStringToObject(object, "cause", cause);

    return is_whole ? events_print(steal_ptr(object)) : NULL;
}

char *foreign_end_line(const char *event, const int *exit_code, const char *cause)
{
    _cleanup_json_ cJSON *object = cJSON_CreateObject();
    bool is_whole = cJSON_AddStringToObject(object, "event", event) &&
                    (!exit_code || cJSON_AddNumberToObject(object, "exit_code", *exit_code)) &&
                    cJSON_AddStringToObject(object, "cause", cause);

    return is_whole ? events_print(steal_ptr(object)) : NULL;
}
