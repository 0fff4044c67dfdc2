/** Statement parts for the number and the index of a Project. */
import {
  requireKnownTypes,
  requireSupported,
  type SettingTypes,
} from '../../access/ineffective-elements.ts'
import type { Outbound } from '../../core/config/outbound.ts'
import { badRequest } from '../../core/errors.ts'
import { typeNumber } from '../../fhir/definitions.ts'
import { asArray, isObject, type Resource } from '../../fhir/resource.ts'
import {
  checkDeadLetterMail,
  checkMailServer,
  checkMailTarget,
} from '../../outbound/project-mail.ts'
import { arrayLiteral } from '../../postgres/statement.ts'
import type { VersionDraft, WritePart, WriteRule } from '../rows/context.ts'
import { SEARCH_PARAMETER } from '../rows/custom-parameters.ts'
import { wantsFullText } from '../rows/side-rows.ts'
import { ownParametersJob } from '../rows/upkeep-jobs.ts'

const PROJECT = 'Project'

/** A Project is stored under its own id. `targets`: where its mail server may be. */
export function projectRule(targets: Outbound): WriteRule {
  return {
    type: PROJECT,
    isProject: true,
    checkForm(project) {
      requireSupported(project)
      requireOnePolicyEach(project)
      checkSettings(project)
      checkMailServer(project)
      checkDeadLetterMail(project)
      requireOneSecretEach(project)
      requireHostNames(project)
    },
    async admit({ before, after }) {
      checkMailTarget(before, after, targets)
      return after
    },
  }
}

/** Errors: 400 for a second default policy of the same kind of member. */
function requireOnePolicyEach({ defaultAccessPolicies: items }: Resource): void {
  const seen = new Set<unknown>()
  for (const [i, item] of asArray(items).entries()) {
    const kind = isObject(item) ? item.profileType : undefined
    const path = `${PROJECT}.defaultAccessPolicies[${i}].profileType`
    if (seen.has(kind)) throw badRequest(`There is another default policy for ${kind}`, path)
    seen.add(kind)
  }
}

/** Settings that the service reads; a Project may have others, for its apps. */
const SETTINGS: Readonly<Record<'setting' | 'systemSetting', SettingTypes>> = {
  setting: {
    autoDownloadAllowedUrlPrefixes: 'valueString',
    autoDownloadEnabled: 'valueBoolean',
    autoDownloadIgnoredUrlPrefixes: 'valueString',
    BOT_INPUT_ARCHIVE: 'valueBoolean',
    botDeclarationsRequired: 'valueBoolean',
    deadLetterMail: 'valueString',
    fullTextSearch: 'valueBoolean',
    mfaMailCodes: 'valueBoolean',
    mfaRequired: 'valueBoolean',
    preCommitSubscriptionsEnabled: 'valueBoolean',
    smtpFrom: 'valueString',
    smtpHost: 'valueString',
    smtpPort: 'valueInteger',
    smtpUser: 'valueString',
    validateQuestionnaireResponse: 'valueString',
    validateTerminology: 'valueString',
  },
  systemSetting: {
    authRateLimit: 'valueInteger',
    botConcurrency: 'valueInteger',
    enableFhirQuota: 'valueBoolean',
    graphqlMaxCost: 'valueInteger',
    graphqlMaxDepth: 'valueInteger',
    graphqlMaxSearches: 'valueInteger',
    rateLimit: 'valueInteger',
    totalFhirQuota: 'valueInteger',
    updateAsCreate: 'valueBoolean',
    userFhirQuota: 'valueInteger',
  },
}

/** Settings that -1 switches off. */
const CAN_BE_OFF = /(FhirQuota|rateLimit)$/i

/** The only value of a setting, which the service otherwise ignores. */
const ONLY_VALUES: Readonly<Record<string, string>> = {
  validateQuestionnaireResponse: 'refuse',
  validateTerminology: 'off',
}

/** Errors: 400 for a setting of the service that would not apply. */
function checkSettings(project: Resource): void {
  for (const [element, types] of Object.entries(SETTINGS)) {
    const items = asArray(project[element])
    requireKnownTypes(items, { path: `${PROJECT}.${element}`, key: 'name', types })
    for (const [i, item] of items.entries()) {
      if (!isObject(item)) continue
      const name = String(item.name)
      const path = `${PROJECT}.${element}[${i}]`
      requireElement(element, name, path)
      if (!Object.hasOwn(types, name)) continue
      const value = item[String(types[name])]
      if (Number(value) < 0 && !CAN_BE_OFF.test(name)) {
        throw badRequest(`${name} must not be negative`, path)
      }
      const only = ONLY_VALUES[name]
      if (only !== undefined && value !== only) {
        throw badRequest(`${name} must be "${only}"; without it, the default applies`, path)
      }
    }
  }
}

/** Errors: 400 for a setting of the service in the other list. */
function requireElement(element: string, name: string, path: string): void {
  const other = element === 'setting' ? 'systemSetting' : 'setting'
  if (!Object.hasOwn(SETTINGS[other], name)) return
  throw badRequest(`${name} belongs to ${PROJECT}.${other}`, path)
}

/** Errors: 400 for a second secret of the same name, which bots would not get. */
function requireOneSecretEach(project: Resource): void {
  for (const element of ['secret', 'systemSecret']) {
    const names = asArray(project[element]).map((item) => isObject(item) && item.name)
    const second = names.findIndex((name, i) => names.indexOf(name) < i)
    if (second < 0) continue
    const path = `${PROJECT}.${element}[${second}]`
    throw badRequest(`The secret ${names[second]} may be given once`, path)
  }
}

/** Labels of letters and digits in any script, without scheme, port and path. */
const HOST_NAME = /^[\p{L}\p{M}\p{N}_-]+(?:\.[\p{L}\p{M}\p{N}_-]+)*$/u

/** Errors: 400 for a domain with a scheme, a port or a path. */
function requireHostNames({ site }: Resource): void {
  for (const [i, item] of asArray(site).entries()) {
    const domains = isObject(item) ? asArray(item.domain) : []
    const wrong = domains.findIndex((name) => typeof name !== 'string' || !HOST_NAME.test(name))
    if (wrong < 0) continue
    const path = `${PROJECT}.site[${i}].domain[${wrong}]`
    throw badRequest('A domain must be a host name such as portal.example.org', path)
  }
}

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
    const named = bind(arrayLiteral(new Set(numbers)), 'int[]')
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
