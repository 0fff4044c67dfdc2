/**
 * Elements of Medplum's platform types that decide about sign-in there and have no effect here. They are rejected: an
 * administrator who restricts a client by one must not believe that the restriction holds.
 */
import { invalid, issue } from '../core/errors.ts'
import { isObject, type Resource } from '../fhir/resource.ts'

const PROVIDER = ['userInfoMode', 'userInfoApiKey', 'identitySource', 'identityMappingMode'].map(
  (name) => `identityProvider.${name}`,
)

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
