/**
 * Secrets that no export holds, whoever asks for it: a file outlives the rights of who made it, and is
 * passed on. Reads show some of them to admins (fields.ts, masked.ts).
 */
import { isObject, type Resource } from '../fhir/resource.ts'

const PATHS: Readonly<Record<string, readonly string[]>> = {
  ClientApplication: ['secret', 'retiringSecret', 'identityProvider.clientSecret'],
  Project: ['secret', 'systemSecret', 'site.recaptchaSecretKey', 'site.googleClientSecret'],
  Subscription: ['channel.header'],
}
const SECRET_EXTENSION = /secret$/i

/** Element paths as a policy would hide them. */
export function secretPaths(type: string): readonly string[] {
  return PATHS[type] ?? []
}

/** True for a type whose extensions may hold secrets. */
export function hasSecretExtensions(type: string): boolean {
  return PATHS[type] !== undefined
}

export function withoutSecretExtensions(resource: Resource): Resource {
  const { extension, ...rest } = resource
  if (!Array.isArray(extension)) return resource
  const kept = extension.filter((item) => !isSecret(item))
  // Only a list was taken away.
  return (kept.length === 0 ? rest : { ...rest, extension: kept }) as Resource
}

function isSecret(item: unknown): boolean {
  return isObject(item) && typeof item.url === 'string' && SECRET_EXTENSION.test(item.url)
}
