--[[
Jobs in partitions with entitlements are submitted held, and declare their class. slurmctld runs this script at each
submission and at each change of a job. It needs JobSubmitPlugins=lua in slurm.conf, and this file in the same folder.

A job's class is a word in its comment: sbatch --comment=gleaner:preemptible
  gleaner:non-preemptible   is left alone once it runs. This is also the class of a job that declares none
  gleaner:preemptible       can be requeued, and then starts over
  gleaner:checkpointable    saves itself on SIGUSR1 and requeues itself, as under `glean run`. Only the job's steps
                            receive the signal, so any other script must start its program with srun
                            (docs/user/user-jobs.md)

/etc/gleaner/slurm-admin.conf, which is read each time, names the partitions with entitlements, and the heartbeat file,
which shows whether control enforces them now. Without a fresh heartbeat, and after any error in this script, every job
passes unchanged. Both files must be on local disks of this machine, because slurmctld waits for them.

A site that already has a job_submit.lua loads this one first, and calls its two functions last:
  dofile("/etc/slurm/gleaner_job_submit.lua")
  local gleaner_submit, gleaner_modify = slurm_job_submit, slurm_job_modify
]]

local CONF = "/etc/gleaner/slurm-admin.conf"
local DEFAULT_CLASS = "non-preemptible"
local CLASSES = { ["non-preemptible"] = true, preemptible = true, checkpointable = true }
local OURS = "gleaner: "
local WAITS = OURS .. "waits for its turn"
local RELEASED = OURS .. "released"
local MOST_FUTURE_S = 60
local ACCESS_DENIED = slurm.ESLURM_ACCESS_DENIED or 2002
local PENDING = 0
local SIZES = {
    "min_cpus", "max_cpus", "num_tasks", "cpus_per_task", "ntasks_per_node", "min_nodes", "max_nodes", "shared",
    "min_mem_per_cpu", "min_mem_per_node",
}
-- The accounting of a job and its other resources. The fields are texts, and nil if they are not changed.
local TERMS = {
    "account", "qos", "gres", "tres_per_job", "tres_per_node", "tres_per_socket", "tres_per_task", "wckey",
}

-- Return the settings, or nil if control does not enforce entitlements now.
local function settings_now()
    local file = io.open(CONF)
    if file == nil then return nil end
    local found = { partitions = {}, fresh_for_s = 60 }
    for line in file:lines() do
        local words = {}
        for word in line:gsub("#.*", ""):gmatch("%S+") do words[#words + 1] = word end
        if words[1] == "heartbeat" then found.heartbeat = words[2] end
        if words[1] == "fresh-for-s" then found.fresh_for_s = tonumber(words[2]) end
        if words[1] == "partition" then
            local admitted = {}
            for place = 3, #words do admitted[words[place]] = true end
            found.partitions[words[2]] = admitted
        end
    end
    file:close()
    local beat = io.open(found.heartbeat)
    if beat == nil then return nil end
    local beat_s = beat:read("*n")
    beat:close()
    local age_s = os.time() - beat_s
    if age_s > found.fresh_for_s or age_s < -MOST_FUTURE_S then return nil end
    return found
end

-- Return the names in "a,b", or the default partition if the user named none.
local function names(partitions, part_list)
    local found = {}
    for name in (partitions or ""):gmatch("[^,]+") do found[#found + 1] = name end
    if #found == 0 then
        for name, part in pairs(part_list) do
            if part.flag_default == 1 then found[#found + 1] = name end
        end
    end
    return found
end

-- Return the number of these partitions that have entitlements, and the first of them.
local function counted(settings, partitions)
    local count, first = 0, nil
    for _, name in ipairs(partitions) do
        if settings.partitions[name] ~= nil then
            count = count + 1
            first = first or name
        end
    end
    return count, first
end

-- Return the class that a comment declares, or nil and a complaint if there is no such class.
local function class_of(comment)
    local found = nil
    for word in (comment or ""):gmatch("[^%s,;]+") do
        local class = word:match("^gleaner:(.*)$")
        if class ~= nil then
            if not CLASSES[class] then
                return nil, "there is no class gleaner:" .. class
                    .. "; there are non-preemptible, preemptible and checkpointable"
            end
            if found ~= nil and found ~= class then return nil, "the comment names two classes" end
            found = class
        end
    end
    return found or DEFAULT_CLASS, nil
end

-- Return a complaint if one of these partitions does not accept this class, or nil.
local function not_admitted(settings, partitions, class)
    for _, name in ipairs(partitions) do
        if not settings.partitions[name][class] then
            return "partition " .. name .. " takes no jobs of class " .. class
                .. "; see --comment=gleaner:CLASS, or choose another partition"
        end
    end
    return nil
end

-- Hold a job that is submitted and return nil, or return a complaint about it.
local function submitted(job, part_list)
    local settings = settings_now()
    if settings == nil then return nil end
    local partitions = names(job.partition, part_list)
    local count, first = counted(settings, partitions)
    if count == 0 then return nil end
    if count < #partitions then
        return "partition " .. first .. " has entitlements and another of " .. job.partition
            .. " has none: name one kind of them"
    end
    if job.het_job_offset ~= nil and job.het_job_offset ~= slurm.NO_VAL then
        return "partition " .. first .. " takes no heterogeneous jobs: submit to another one"
    end
    if job.priority == 0 then
        return "jobs in partition " .. first .. " wait for their turn without --hold; use --begin to start later"
    end
    local class, complaint = class_of(job.comment)
    complaint = complaint or not_admitted(settings, partitions, class)
    if complaint ~= nil then return complaint end
    if class ~= DEFAULT_CLASS and (job.script == nil or job.script == "") then
        return "class " .. class .. " is for sbatch: an interactive job cannot be requeued"
    end
    if class ~= DEFAULT_CLASS and job.requeue == 0 then
        return "class " .. class .. " contradicts --no-requeue: such a job is requeued to go on later"
    end
    job.priority = 0
    job.admin_comment = WAITS
    return nil
end

-- Return true if a change requests more or less than before, or changes the terms by which the job was judged.
local function resizes(change)
    for _, field in ipairs(TERMS) do
        if change[field] ~= nil then return true end
    end
    for _, field in ipairs(SIZES) do
        local value = change[field]
        if value ~= nil and value ~= slurm.NO_VAL and value ~= slurm.NO_VAL16 and value ~= slurm.NO_VAL64 then
            return true
        end
    end
    return false
end

-- Return nil, or a complaint about a change that a job's owner requests. All others who can change it are operators.
local function modified(change, job, part_list)
    local settings = settings_now()
    if settings == nil then return nil end
    local before = names(job.partition, part_list)
    local count_before, first = counted(settings, before)
    if change.partition ~= nil and change.partition ~= "" then
        local after = names(change.partition, part_list)
        local count = counted(settings, after)
        if (count > 0 or count_before > 0) and (count ~= #after or count_before ~= #before) then
            return "a job cannot be moved into or out of a partition with entitlements: submit it there"
        end
        before = after
    end
    if count_before == 0 then return nil end
    if change.admin_comment ~= nil then return "the AdminComment of a job in partition " .. first .. " is not yours" end
    local is_new = (job.restart_cnt or 0) == 0
    local mark = job.admin_comment or ""
    local is_marked = mark:sub(1, #OURS) == OURS
    local is_ours = is_marked and (mark:sub(1, #RELEASED) ~= RELEASED or not is_new)
    if job.priority == 0 and is_ours and change.priority ~= nil and change.priority ~= slurm.NO_VAL then
        return "this job waits for its turn in partition " .. first .. ": Gleaner releases it"
    end
    local is_pending = job.job_state % 256 == PENDING
    local is_released = is_marked and not (job.priority == 0 and is_ours) -- no matter who released it
    if is_pending and is_released and resizes(change) then
        return "what a job asks for is fixed once it has been released: cancel it and submit it anew"
    end
    if change.comment == nil and change.partition == nil then return nil end
    local class, complaint = class_of(change.comment or job.comment)
    complaint = complaint or not_admitted(settings, before, class)
    if complaint ~= nil then return complaint end
    if class ~= class_of(job.comment) and not (is_new and is_pending and job.priority == 0) then
        return "the class of a job is fixed once it has started, or has been released"
    end
    return nil
end

-- Let a job pass if anything goes wrong in this script, because Gleaner must never keep a cluster from working.
local function judged(judge, ...)
    local worked, complaint = pcall(judge, ...)
    if not worked then
        slurm.log_info("gleaner: a job passes untouched: %s", tostring(complaint))
        return slurm.SUCCESS
    end
    if complaint == nil then return slurm.SUCCESS end
    slurm.log_user("%s", complaint)
    return ACCESS_DENIED
end

function slurm_job_submit(job_desc, part_list, submit_uid)
    return judged(submitted, job_desc, part_list)
end

function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    if modify_uid ~= job_rec.user_id then return slurm.SUCCESS end
    return judged(modified, job_desc, job_rec, part_list)
end

return slurm.SUCCESS
