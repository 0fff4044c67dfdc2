/** Style sheets handled by the bundler. */
declare module '*.css'
