/** Rejects elements of platform types that would have no effect: unsupported ones, and known settings with a wrong type. */
import { badRequest, invalid, issue } from '../core/errors.ts'
import { asArray, isObject, type Resource } from '../fhir/resource.ts'

const PROVIDER = ['userInfoMode', 'userInfoApiKey', 'identitySource', 'identityMappingMode'].map(
  (name) => `identityProvider.${name}`,
)

/**
 * Elements that decide about sign-in at Medplum. An administrator must not believe that a restriction by one of them
 * holds.
 */
const UNSUPPORTED: Readonly<Record<string, readonly string[]>> = {
  ClientApplication: ['grantType', 'responseType', 'certificateTrustStore', ...PROVIDER],
  DomainConfiguration: ['allowedPostLoginRedirectUrls', ...PROVIDER],
  User: ['mfaMethod'],
}

/** Errors: 400 `not-supported` with the path of each element. */
export function requireSupported(resource: Resource): void {
  const type = resource.resourceType
  const issues = (UNSUPPORTED[type] ?? [])
    .filter((path) => hasPath(resource, path.split('.')))
    .map((path) =>
      issue('error', 'not-supported', `${path} is not supported; remove it`, {
        expression: `${type}.${path}`,
      }),
    )
  if (issues.length > 0) throw invalid(issues)
}

function hasPath(value: unknown, names: readonly string[]): boolean {
  const [name, ...rest] = names
  if (name === undefined) return value !== undefined && value !== null
  return isObject(value) && hasPath(value[name], rest)
}

export type SettingTypes = Readonly<Record<string, `value${string}`>>

/** A list of named values: settings of Projects and agents, options of UserConfigurations. */
interface KnownSettings {
  /** Path of the list. */
  readonly path: string
  /** The member that holds the name. */
  readonly key: 'id' | 'name'
  readonly types: SettingTypes
}

/** Errors: 400 for a known setting that has another type of value, or is there twice: it would not apply. */
export function requireKnownTypes(items: unknown, { path, key, types }: KnownSettings): void {
  const seen = new Set<string>()
  for (const [i, item] of asArray(items).entries()) {
    const name = isObject(item) ? item[key] : undefined
    if (!isObject(item) || typeof name !== 'string' || !Object.hasOwn(types, name)) continue
    const type = String(types[name])
    const place = `${path}[${i}]`
    if (item[type] === undefined) throw badRequest(`${name} must have a ${type}`, place)
    if (seen.has(name)) throw badRequest(`${name} may be given once`, place)
    seen.add(name)
  }
}

/** Settings that Medplum's agent 5.1 reads; it ignores one of another type. */
const AGENT_SETTINGS: SettingTypes = {
  channelAutoRetry: 'valueBoolean',
  channelAutoRetryBackoffMultiplier: 'valueDecimal',
  channelAutoRetryBaseDelayMs: 'valueInteger',
  channelAutoRetryMaxAttempts: 'valueInteger',
  channelAutoRetryMaxDelayMs: 'valueInteger',
  channelGuaranteedDelivery: 'valueBoolean',
  durableQueue: 'valueBoolean',
  keepAlive: 'valueBoolean',
  logStatsFreqSecs: 'valueInteger',
  maxClientsPerRemote: 'valueInteger',
  queueDbPath: 'valueString',
  queueErroredRetentionDays: 'valueInteger',
  queueRetentionDays: 'valueInteger',
  queueRetentionMaxMb: 'valueInteger',
  queueSweepIntervalSecs: 'valueInteger',
}

/** Errors: 400 as above; other settings are left to the programs that read them. */
export function checkAgentSettings({ setting }: Resource): void {
  requireKnownTypes(setting, { path: 'Agent.setting', key: 'name', types: AGENT_SETTINGS })
}

/** Errors: 400 as above, for the limits that the service reads. */
export function checkUserOptions({ option }: Resource): void {
  const types = { fhirQuota: 'valueInteger' } as const
  requireKnownTypes(option, { path: 'UserConfiguration.option', key: 'id', types })
}
