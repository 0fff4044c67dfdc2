/** Every word that the console shows. A second language is a second file with the same names. */
import en from './en.json' with { type: 'json' }

export const texts = en

/** Puts values into the `{name}` places of a text. */
export function fill(text: string, values: Readonly<Record<string, string | number>>): string {
  return text.replace(/\{(\w+)\}/g, (place, name: string) => String(values[name] ?? place))
}
