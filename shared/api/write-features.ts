/** The rules and parts of writes that features register with the Repository, and the caches that a change drops. */

import { pendingRunPart } from '../bots/async-jobs.ts'
import { botRules, schedulePart } from '../bots/write-rules.ts'
import type { Outbound } from '../core/config/outbound.ts'
import { definitionRules } from '../identity/definitions.ts'
import { identityRules, type ProgramRights } from '../identity/write-rules.ts'
import type { Changes } from '../redis/changes.ts'
import { downloadPart } from '../request/binary/downloads.ts'
import type { WriteFeatures } from '../store/open-repository.ts'
import { changePart, projectRule, reindexPart, tenantPart } from '../store/write/project-parts.ts'
import { subscriptionRule, watchPart } from '../subscriptions/write-rule.ts'

interface Settings {
  /** Without it nobody but administrators writes programs that have a membership. */
  readonly programRights?: ProgramRights
  /** The address of this service. */
  readonly baseUrl?: string
  /** Where Subscriptions may send to; only to public addresses by default. */
  readonly hookTargets?: Outbound
  /** External attachments are fetched; not by default. */
  readonly autoDownload?: boolean
  /** Hears of each change that caches must not outlive. */
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
      projectRule,
      ...identityRules(programRights, baseUrl),
      ...definitionRules,
      ...botRules(programRights),
      subscriptionRule(hookTargets),
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
