/** Statement parts for the number and the index of a Project. */
import type { Change } from '../../core/cache.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import type { VersionDraft, WritePart, WriteRule } from '../rows/context.ts'
import { SEARCH_PARAMETER } from '../rows/custom-parameters.ts'
import { wantsFullText } from '../rows/side-rows.ts'
import { ownParametersJob } from '../rows/upkeep-jobs.ts'
import { platformMeta } from '../rows/version.ts'

const PROJECT = 'Project'

/** A Project is stored under its own id. */
export const projectRule: WriteRule = { type: PROJECT, isProject: true }

interface Tenant {
  readonly id: string
  readonly fullText: number | null
}

export const tenantPart: WritePart<Tenant> = {
  types: new Set([PROJECT]),
  buildRow(draft) {
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

/** True when a Project enables or disables full-text search. */
function isSwitched({ resource, stored }: VersionDraft): boolean {
  return wantsFullText(resource) !== wantsFullText(stored)
}

/** The number of a Project, or the row id of a switched one, whose number only the statement knows. */
type Reindexed = { readonly project: number } | { readonly switched: string }

/** Must follow `tenantPart`, whose rows it reads. */
export const reindexPart: WritePart<Reindexed> = {
  types: new Set([SEARCH_PARAMETER, PROJECT]),
  buildRow(draft) {
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

/** Types that caches of sessions, validation and terminology depend on. */
const CACHED = new Set([
  ...['AccessPolicy', 'Bot', 'ClientApplication', 'Login', PROJECT, 'ProjectMembership'],
  ...['UserConfiguration', SEARCH_PARAMETER, 'StructureDefinition', 'Questionnaire'],
  ...['CodeSystem', 'ValueSet'],
])

export function changePart(
  report: (change: Change) => Promise<void>,
): WritePart<Omit<Change, 'number'>> {
  return {
    types: CACHED,
    buildRow({ resource: { resourceType, meta }, place }) {
      // A new Login cannot be cached yet.
      if (resourceType === 'Login' && place.ver === 1) return undefined
      const home = typeof meta?.project === 'string' ? meta.project : undefined
      return { type: resourceType, id: place.id, home }
    },
    buildDeletionRow: (version) => ({
      ...{ type: version.type, id: version.id },
      home: platformMeta(version).project,
    }),
    committed: ({ project, row }) => report({ ...row, number: project }),
  }
}
