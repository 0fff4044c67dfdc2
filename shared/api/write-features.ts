/** Registers the write rules and parts of features, and the caches that a change invalidates. */

import { pendingRunPart } from '../bots/async-jobs.ts'
import { botRules, schedulePart } from '../bots/write-rules.ts'
import type { Outbound } from '../core/config/outbound.ts'
import { definitionRules } from '../identity/definitions.ts'
import { identityRules, type ProgramRights } from '../identity/write-rules.ts'
import type { Changes } from '../redis/changes.ts'
import { downloadPart } from '../request/binary/attachments.ts'
import type { WriteFeatures } from '../store/open-repository.ts'
import { projectRule, reindexPart, tenantPart } from '../store/write/project-parts.ts'
import { changePart } from '../store/write/reported-changes.ts'
import { topicRule } from '../subscriptions/topics.ts'
import { subscriptionRule, watchPart } from '../subscriptions/write-rule.ts'

interface Settings {
  /** Without it only administrators write programs with a membership. */
  readonly programRights?: ProgramRights
  readonly baseUrl?: string
  /** Allowed targets of Subscriptions and mail servers; only public addresses by default. */
  readonly hookTargets?: Outbound
  /** Downloads external attachments; off by default. */
  readonly autoDownload?: boolean
  /** Called with each change relevant to caches. */
  readonly report?: Changes['report']
}

const PUBLIC = { reach: 'public', only: [], never: [], userAgent: '' } as const

export function writeFeatures({
  programRights = async () => [undefined],
  baseUrl,
  hookTargets = PUBLIC,
  autoDownload = false,
  report = async () => {},
}: Settings = {}): WriteFeatures {
  return {
    rules: [
      projectRule(hookTargets),
      ...identityRules(programRights, baseUrl),
      ...definitionRules,
      ...botRules(programRights),
      subscriptionRule(hookTargets),
      topicRule,
    ],
    parts: [
      tenantPart,
      reindexPart,
      schedulePart,
      pendingRunPart,
      watchPart,
      downloadPart(autoDownload),
      changePart(report),
    ],
  }
}
