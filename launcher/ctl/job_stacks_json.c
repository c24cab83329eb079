#include "launcher/ctl/job_stacks_json.h"

#include <cjson/cJSON.h>
#include <string.h>

#include "base/utf8.h"
#include "launcher/report/events.h"
#include "base/strbuf.h"
#include "rendezvous/session/fields_json.h"

char *job_stacks_to_json(const char *job, const char *folder, const char *lines)
{
    _cleanup_json_ cJSON *object = cJSON_CreateObject();

    (void)cJSON_AddNumberToObject(object, "version",
                                  1); /* without memory the text below is NULL, or a field is missing */
    events_add_text(object, "job", job);
    if (folder)
        events_add_text(object, "folder", folder);
    events_add_lines(object, "groups", lines);
    return cJSON_PrintUnformatted(object);
}

/* In place; NULL: no text. */
static char *printable_text(cJSON *item)
{
    char *text = cJSON_GetStringValue(item);

    if (text)
        text_clean(text);
    return text;
}

char *job_stacks_text(const char *bytes, size_t n_bytes)
{
    _cleanup_json_ cJSON *object = cJSON_ParseWithLength(bytes, n_bytes);
    const char *job = printable_text(cJSON_GetObjectItemCaseSensitive(object, "job"));
    const char *folder = printable_text(cJSON_GetObjectItemCaseSensitive(object, "folder"));
    cJSON *groups = cJSON_GetObjectItemCaseSensitive(object, "groups"), *group;
    struct strbuf t = {0};

    if (!job || !cJSON_IsArray(groups))
        return NULL;
    strbuf_add(&t, "job %s%s%s\n", job, folder ? ", stacks: " : "", folder ? folder : "");
    cJSON_ArrayForEach(group, groups)
    {
        const char *line = printable_text(group);
        if (line)
            strbuf_add(&t, "  %s\n", line);
    }
    return strbuf_steal(&t);
}
