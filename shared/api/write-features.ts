/** The rules and parts of writes that features register with the Repository, those of a Project among them. */
import { downloadPart } from '../binary/downloads.ts'
import { botRules, schedulePart } from '../bots/write-rules.ts'
import type { Outbound } from '../config/outbound.ts'
import { typeNumber } from '../fhir/definitions.ts'
import type { ProgramRights } from '../identity/program-rights.ts'
import { identityRules } from '../identity/write-rules.ts'
import { SEARCH_PARAMETER } from '../store/index/custom-parameters.ts'
import type { WriteFeatures } from '../store/open-repository.ts'
import type { VersionDraft, WritePart, WriteRule } from '../store/rows/context.ts'
import { ownParametersJob } from '../store/rows/upkeep-jobs.ts'
import { wantsFullText } from '../store/write/full-text.ts'
import { subscriptionRule, watchPart } from '../subscriptions/write-rule.ts'

interface Settings {
  /** Without it nobody but administrators writes programs that have a membership. */
  readonly programRights?: ProgramRights
  /** Where Subscriptions may send to; only to public addresses by default. */
  readonly hookTargets?: Outbound
  /** External attachments are fetched; not by default. */
  readonly autoDownload?: boolean
}

const PUBLIC = { reach: 'public', only: [], never: [], userAgent: '' } as const

export function writeFeatures({
  programRights = async () => [undefined],
  hookTargets = PUBLIC,
  autoDownload = false,
}: Settings = {}): WriteFeatures {
  return {
    rules: [
      projectRule,
      ...identityRules(programRights),
      ...botRules(programRights),
      subscriptionRule(hookTargets),
    ],
    parts: [tenantPart, reindexPart, schedulePart, watchPart, downloadPart(autoDownload)],
  }
}

const PROJECT = 'Project'

/** A Project is filed under its own id. */
const projectRule: WriteRule = { type: PROJECT, isProject: true }

/** The number of a new Project, and whether it searches words. */
interface Tenant {
  /** Row id. */
  readonly id: string
  /** The version that has switched on the search of words. */
  readonly fullText: number | null
}

const tenantPart: WritePart<Tenant> = {
  types: new Set([PROJECT]),
  rowOf(draft) {
    const { store, resource, place } = draft
    if (place.ver > 1 && !isSwitched(draft)) return undefined
    const fullText = wantsFullText(resource) ? place.ver : null
    return { id: store.keys.rowId(PROJECT, place.id), fullText }
  },
  sql(rows, bind) {
    const ids = bind(
      rows.map(({ item }) => item.id),
      'uuid[]',
    )
    const versions = bind(
      rows.map(({ item }) => item.fullText),
      'int[]',
    )
    const insert = `t as (insert into tenant as t (fhir_id, full_text)
      select * from unnest(${ids}, ${versions})
      on conflict (fhir_id) do update set full_text = excluded.full_text
      returning t.project, t.fhir_id)`
    return { name: 'tenants', sql: [insert] }
  },
}

/** True when a Project begins or ends to search words. */
function isSwitched({ resource, stored }: VersionDraft): boolean {
  return wantsFullText(resource) !== wantsFullText(stored)
}

/** The number of a Project, or the row id of one that is switched, whose number only the statement knows. */
type Reindexed = { readonly project: number } | { readonly switched: string }

/** Behind `tenantPart`, whose rows it reads. */
const reindexPart: WritePart<Reindexed> = {
  types: new Set([SEARCH_PARAMETER, PROJECT]),
  rowOf(draft) {
    const { store, resource, place } = draft
    if (resource.resourceType === SEARCH_PARAMETER) return { project: place.project }
    return isSwitched(draft) ? { switched: store.keys.rowId(PROJECT, place.id) } : undefined
  },
  sql(rows, bind) {
    const numbers = rows.flatMap(({ item }) => ('project' in item ? [item.project] : []))
    const switched = rows.flatMap(({ item }) => ('switched' in item ? [item.switched] : []))
    const named = bind(`{${[...new Set(numbers)].join(',')}}`, 'int[]')
    if (switched.length === 0)
      return { name: 'reindex', sql: [`p as (${ownParametersJob(named)})`] }
    const projects = `array(select unnest(${named}) union
      select project from t where fhir_id = any(${bind(switched, 'uuid[]')}))`
    return { name: 'switch', sql: [`p as (${ownParametersJob(projects)})`] }
  },
  removal: {
    type: SEARCH_PARAMETER,
    name: 'reindex',
    sql: [
      `p as (${ownParametersJob(`array(select distinct project from now
        where type = ${typeNumber(SEARCH_PARAMETER)})`)})`,
    ],
  },
}
